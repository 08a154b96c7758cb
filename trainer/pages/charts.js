// Draws the charts of a page with uPlot, each from the JSON in its figure (charts.py), as soon as it is near the window.
(() => {
  "use strict";
  const INK = "#5b6570", GRID = "#e9ecef", FONT = "12px system-ui, sans-serif", HEIGHT = 210;
  const STEPS = [1, 2, 5, 10].flatMap((one) => [...Array(13).keys()].map((zeros) => one * 10 ** zeros)).sort((a, b) => a - b);

  let under = null; // the chart under the pointer: the cursors of the others follow it

  const words = (value) => Math.abs(value) >= 1000
    ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : String(Number(value.toPrecision(5)));
  const short = (value) => Math.abs(value) < 1000 ? String(Number(value.toPrecision(6)))
    : Number((value / (value >= 1e6 ? 1e6 : 1e3)).toPrecision(6)) + (value >= 1e6 ? "M" : "k");

  function axes(chart) {
    const common = { stroke: INK, font: FONT, grid: { stroke: GRID, width: 1 }, ticks: { stroke: GRID, width: 1, size: 5 } };
    const labels = (_, splits) => splits.map((at) => at === null ? "" : short(at));
    const named = (_, splits) => splits.map((at) => chart.names[at] ?? "");
    const across = chart.names.length ? { values: named, incrs: STEPS, space: 84 }
      : chart.integers ? { values: labels, incrs: STEPS, space: 60 } : { values: labels, space: 60 };
    const wide = (_, values) => 14 + 7 * Math.max(3, ...(values ?? []).map((one) => String(one).length));
    return [{ ...common, ...across, size: 30 }, { ...common, values: labels, size: wide, space: 34 }];
  }

  // The curves decide the range; a level far away from them would flatten them, and is named below the chart all the same.
  function range(chart) {
    const values = chart.series.flatMap((one) => one.y).filter((value) => value !== null);
    let low = Math.min(...values), high = Math.max(...values);
    const span = high - low || Math.abs(high) || 1;
    for (const { value } of chart.levels) {
      if (value > low - span && value < high + span) {
        [low, high] = [Math.min(low, value), Math.max(high, value)];
      }
    }
    const margin = 0.05 * (high - low || span);
    return [chart.lowest ?? low - margin, high + margin];
  }

  // Points at the ends of an axis need room beside them; choices of a key are numbered from 0.
  function room(chart) {
    if (chart.drawn !== "points" || chart.log) return {};
    if (chart.names.length) return { range: [-0.5, chart.names.length - 0.5] };
    return { range: (_, low, high) => [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)] };
  }

  function series(chart) {
    const paths = chart.drawn === "steps" ? uPlot.paths.stepped({ align: 1 })
      : chart.drawn === "points" ? () => null : uPlot.paths.linear();
    const points = (one) => chart.drawn === "points" ? { show: true, size: 7, fill: one.color }
      : { show: one.x.length < 2 || chart.drawn === "marked" && !one.faint, size: 5, fill: one.color };
    const curves = chart.series.map((one, place) => ({
      stroke: one.color, width: one.faint ? 1 : 1.75, alpha: one.faint ? 0.45 : 1, spanGaps: true, paths, points: points(one),
      ...(chart.drawn === "steps" && place === 0 ? { fill: one.color + "2e" } : {}),
    }));
    const levels = chart.levels.map(({ color }) => ({ stroke: color, width: 1.25, dash: [6, 4], points: { show: false } }));
    return [{}, ...curves, ...levels];
  }

  function mark(chart) {
    return (plot) => {
      for (const { best, color } of chart.series) {
        if (!best) continue;
        const [x, y] = [plot.valToPos(best[0], "x", true), plot.valToPos(best[1], "y", true)];
        plot.ctx.setLineDash([]); // of the level drawn before
        plot.ctx.beginPath();
        plot.ctx.arc(x, y, 4.5 * devicePixelRatio, 0, 2 * Math.PI);
        plot.ctx.fillStyle = "#fff";
        plot.ctx.fill();
        plot.ctx.lineWidth = 2 * devicePixelRatio;
        plot.ctx.strokeStyle = color;
        plot.ctx.stroke();
      }
    };
  }

  function row(color, name, value) {
    const line = document.createElement("div"), chip = document.createElement("i");
    chip.style.background = color;
    line.append(chip, `${name} `, Object.assign(document.createElement("b"), { textContent: words(value) }));
    return line;
  }

  // A box beside the pointer with the values there.
  function tip(chart) {
    const box = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    const show = (plot) => {
      const { left, top, idx, idxs } = plot.cursor;
      box.hidden = !(idx >= 0 && left >= 0 && plot.over === under);
      if (box.hidden) return;
      const at = plot.data[0][idx];
      const head = Object.assign(document.createElement("div"), { textContent: `${chart.of} ${chart.names[at] ?? words(at)}`.trim() });
      const found = chart.series.map((one, place) => [one.color, one.name, plot.data[place + 1][idxs[place + 1]]]);
      const levels = chart.levels.map((one) => [one.color, one.name, one.value]);
      box.replaceChildren(head, ...[...found, ...levels].filter(([, , value]) => value != null).map((one) => row(...one)));
      const side = left > plot.over.clientWidth / 2 ? left - box.offsetWidth - 12 : left + 12;
      box.style.transform = `translate(${Math.round(side)}px, ${Math.round(Math.min(top, plot.over.clientHeight - box.offsetHeight))}px)`;
    };
    const ready = (plot) => {
      plot.over.append(box);
      plot.over.addEventListener("mouseenter", () => { under = plot.over; });
      plot.over.addEventListener("mouseleave", () => { under = null; box.hidden = true; });
    };
    return { ready: [ready], setCursor: [show] };
  }

  // Points of several series over all their places; uPlot.join would keep one of the points with equal x.
  function scatter(series) {
    const points = series.flatMap((one, of) => one.x.map((x, place) => [x, of, one.y[place]])).sort((a, b) => a[0] - b[0]);
    return [points.map(([x]) => x), ...series.map((_, of) => points.map((point) => point[1] === of ? point[2] : null))];
  }

  function draw(figure) {
    const chart = JSON.parse(figure.querySelector("script").textContent), place = figure.querySelector(".plot");
    const isScatter = chart.drawn === "points";
    const joined = isScatter ? scatter(chart.series) : uPlot.join(chart.series.map((one) => [one.x, one.y]));
    const levels = chart.levels.map(({ value }) => joined[0].map(() => value));
    const nearest = { hover: { skip: [null, undefined], prox: isScatter ? 12 : null }, drag: { x: true, y: false }, points: { size: 7 } };
    const options = {
      width: place.clientWidth, height: HEIGHT, legend: { show: false }, axes: axes(chart), series: series(chart),
      scales: { x: { time: false, distr: chart.log ? 3 : 1, ...room(chart) }, y: { range: range(chart) } },
      cursor: chart.integers ? { ...nearest, sync: { key: chart.of } } : nearest,
      hooks: { draw: [mark(chart)], ...tip(chart) }, padding: [10, 12, 0, 0],
    };
    const plot = new uPlot(options, [...joined, ...levels], place);
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
  }

  // A page with a thousand columns has thousands of charts, whose canvases would not fit into memory at once.
  const near = 800;
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        seen.unobserve(target);
        draw(target);
      }
    }
  }, { rootMargin: `${near}px` });
  const figures = [...document.querySelectorAll("figure.chart")];
  const places = figures.map((figure) => figure.getBoundingClientRect().top);
  // Those in sight are drawn before the page is shown: pictures of the page are taken then.
  figures.forEach((figure, number) => places[number] < innerHeight + near ? draw(figure) : seen.observe(figure));
})();
