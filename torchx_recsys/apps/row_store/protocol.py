"""The keys of a model in Redis, and the scripts that write them; docs/guides/row_store.md describes both for readers.

A row is a hash whose fields are numbers of versions. A reader at version V takes the greatest field up to V, so the
next version is written beside it, unseen, and a version is complete once its number is in the key `version`.

Each script runs whole or not at all. First it checks that its caller still is the only publisher: the key `lock` has
the caller's token, or has expired, and the key `writing` has the caller's version. Whoever takes the lock removes the
key `writing`, so a publisher that was paused can write nothing more.
"""

from typing import Any

LOCK_SECONDS = 4.0  # until the lock of a killed publisher expires
PART_BYTES = 4 << 20  # size of the parts in which files are kept
BATCH_ROWS = 500  # most rows that are written at once, for which readers wait some milliseconds
TRIP_ROWS = 8 * BATCH_ROWS  # most rows of a round trip


class Keys:
    """The keys of a model.

    Args:
        prefix: The beginning of all keys of the model.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.version, self.versions = f"{prefix}:version", f"{prefix}:versions"
        self.lock, self.writing, self.leftovers = f"{prefix}:lock", f"{prefix}:writing", f"{prefix}:leftovers"

    def about(self, version: int) -> str:
        """Returns the key of what a version is."""
        return f"{self.prefix}:about:{version}"

    def tables(self, version: int) -> str:
        """Returns the key of the tables of a version."""
        return f"{self.prefix}:tables:{version}"

    def files(self, version: int) -> str:
        """Returns the key of the files of a version."""
        return f"{self.prefix}:files:{version}"

    def row(self, table: str, row: int) -> str:
        """Returns the key of a row."""
        return f"{self.prefix}:row:{table}:{row}"


def value_at(fields: dict[bytes, bytes], version: int) -> bytes | None:
    """Returns the value of a row at a version: that of the greatest field up to the version. None if there is none."""
    return fields.get(b"%d" % max((number for number in map(int, fields) if number <= version), default=-1))


# p: prefix. ARGV of all: prefix, token, milliseconds of the lock.
_BEGIN = """
local p, token, ttl = ARGV[1], ARGV[2], ARGV[3]
local holder = redis.call('GET', p .. ':lock')
"""
# Also ARGV[4], the version that is being written.
_WRITING = f"""{_BEGIN}
local version = ARGV[4]
if redis.call('GET', p .. ':writing') ~= version or (holder and holder ~= token) then return 0 end
redis.call('SET', p .. ':lock', token, 'PX', ttl)
"""
_HOLDING = f"""{_BEGIN}
if holder ~= token then return 0 end
redis.call('PEXPIRE', p .. ':lock', ttl)
"""
_REMOVE_SOME = """
local version = ARGV[4]
local chunk = redis.call('LPOP', p .. ':changed:' .. version)
if chunk then
    local one = cjson.decode(chunk)
    local key = p .. ':row:' .. one.table .. ':'
    for _, run in ipairs(one.rows) do
        for row = run[1], run[2] - 1 do redis.call('HDEL', key .. string.format('%d', row), version) end
    end
    return 2
end
redis.call('DEL', p .. ':files:' .. version)
"""

SCRIPTS: dict[str, str] = {
    # Returns 1, or the token of another publisher. What a killed one was writing is left to be removed.
    "take": f"""{_BEGIN}
if holder and holder ~= token then return holder end
redis.call('SET', p .. ':lock', token, 'PX', ttl)
local left = redis.call('GET', p .. ':writing')
if left then
    redis.call('SADD', p .. ':leftovers', left)
    redis.call('DEL', p .. ':writing')
end
return 1
""",
    "renew": f"{_HOLDING} return 1",
    "release": f"""{_BEGIN}
if holder == token then redis.call('DEL', p .. ':lock') end
return 1
""",
    # Returns a number that no version had before; 0 if the lock is lost.
    "begin": f"""{_HOLDING}
local number = redis.call('INCR', p .. ':last')
redis.call('SET', p .. ':writing', string.format('%d', number))
return number
""",
    # ARGV[5:]: name of a file and number of the part, content.
    "file": f"""{_WRITING}
redis.call('HSET', p .. ':files:' .. version, ARGV[5], ARGV[6])
return 1
""",
    # ARGV[5:]: table, JSON of the table and the ranges of rows, then number and bytes of each row.
    "rows": f"""{_WRITING}
redis.call('RPUSH', p .. ':changed:' .. version, ARGV[6])
local key = p .. ':row:' .. ARGV[5] .. ':'
for place = 7, #ARGV, 2 do redis.call('HSET', key .. ARGV[place], version, ARGV[place + 1]) end
return 1
""",
    # ARGV[5:]: about, tables. May be repeated.
    "move": f"""
if redis.call('GET', ARGV[1] .. ':version') == ARGV[4] then return 1 end
{_WRITING}
redis.call('SET', p .. ':about:' .. version, ARGV[5])
redis.call('SET', p .. ':tables:' .. version, ARGV[6])
redis.call('SET', p .. ':version', version)
if redis.call('RPUSH', p .. ':versions', version) == 1 then redis.call('DEL', p .. ':changed:' .. version) end
redis.call('DEL', p .. ':writing')
return 1
""",
    # Removes some rows of a version that another publisher left. ARGV[4]: the version. Returns 2 if there may be more.
    "clean": f"""{_HOLDING}{_REMOVE_SOME}
redis.call('SREM', p .. ':leftovers', version)
return 1
""",
    # Removes some rows of the version that is being written, and gives it up; also in a store whose memory is full.
    "discard": f"""{_HOLDING}
if redis.call('GET', p .. ':writing') ~= ARGV[4] then return 0 end
{_REMOVE_SOME}
redis.call('DEL', p .. ':writing')
return 1
""",
    # Removes what no version needs of some rows that the oldest version changed; then the oldest version, if there are
    # more than ARGV[4]. Returns 2 if there may be more.
    "expire": f"""{_HOLDING}
local oldest = redis.call('LINDEX', p .. ':versions', 0)
local chunk = redis.call('LPOP', p .. ':changed:' .. oldest)
if chunk then
    local one = cjson.decode(chunk)
    for _, run in ipairs(one.rows) do
        for row = run[1], run[2] - 1 do
            local key = p .. ':row:' .. one.table .. ':' .. string.format('%d', row)
            for _, field in ipairs(redis.call('HKEYS', key)) do
                if tonumber(field) < tonumber(oldest) then redis.call('HDEL', key, field) end
            end
            if redis.call('HGET', key, oldest) == '' then redis.call('HDEL', key, oldest) end
        end
    end
    return 2
end
if redis.call('LLEN', p .. ':versions') <= tonumber(ARGV[4]) then return 1 end
redis.call('DEL', p .. ':about:' .. oldest, p .. ':tables:' .. oldest)
redis.call('UNLINK', p .. ':files:' .. oldest)
redis.call('LPOP', p .. ':versions')
return 2
""",
}


def runs_of(numbers: Any) -> list[list[int]]:
    """Returns ascending numbers as ranges [first, one after the last], as few as there can be."""
    import numpy as np

    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, ends + 1]], numbers[np.r_[ends, len(numbers) - 1]]
    return np.stack([firsts, lasts + 1], axis=1).tolist()
