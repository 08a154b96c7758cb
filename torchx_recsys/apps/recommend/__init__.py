"""The top items of a catalogue for users: from a run, from an export, and over HTTP."""
