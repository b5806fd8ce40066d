//! Bugs that the explorer must find: each a change of one script, as a tired person might make it. The gate runs the changed text
//! in place of the product's; the product itself has no trace of them.

use anyhow::{Result, ensure};

/// One bug.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// What is wrong.
    pub name: &'static str,
    script: &'static str,
    changes: &'static [(&'static str, &'static str)],
}

impl Planted {
    /// The changed text of a script, if this bug is in it.
    pub fn apply(&self, script: &str, text: &str) -> Option<Result<String>> {
        (script == self.script).then(|| {
            let mut text = text.to_owned();
            for (from, to) in self.changes {
                ensure!(text.matches(from).count() == 1, "{}: not once in {script}: {from}", self.name);
                text = text.replace(from, to);
            }
            Ok(text)
        })
    }
}

const fn bug(name: &'static str, script: &'static str, changes: &'static [(&'static str, &'static str)]) -> Planted {
    Planted { name, script, changes }
}

/// Those that 400 random runs find. Left to the arrows, which hold them: a claim for an owner that is gone (its request must be under
/// way for as long as it takes to declare its node dead and reap it), a reap that leaves the token as it is (the state's letter and
/// node refuse the late settle as well), and a suspect without a time (one job must lose two nodes).
pub const ALL: &[Planted] = &[
    bug(
        "settle compares no token",
        "SETTLE",
        &[
            ("elseif held ~= token or node ~= inc then", "elseif false then"),
            (" and string.sub(st, 2, 17) == token and string.sub(st, 1, 1) == 'r'\n    and string.sub(st, -#mine) == mine", ""),
        ],
    ),
    bug(
        "settle leaves the running set as it is",
        "SETTLE",
        &[("if #left > 0 then redis.call('SREM', RUN, unpack(left)) end", "")],
    ),
    bug("settle keeps the unique key", "SETTLE", &[("if final and bit.band(flags, UNIQUE) ~= 0 then", "if false then")]),
    bug("settle forgets a cancel", "SETTLE", &[("if bit.band(flags, CANCEL) ~= 0 and", "if false and")]),
    bug("settle writes the state and no index", "SETTLE", &[("redis.call('ZADD', Q .. ':' .. SETS[letter], unpack(set))", "")]),
    bug("settle hands back without an entry", "SETTLE", &[("place(id, redis.call('HGET', bucket(id), id), flags, true)", "")]),
    bug("promote compares no term", "PROMOTE", &[("if fence and fence > term then return {fence} end", "")]),
    bug(
        "promote lowers the fence",
        "PROMOTE",
        &[
            ("if fence and fence > term then return {fence} end", ""),
            ("if fence ~= term then redis.call('SET'", "if true then redis.call('SET'"),
        ],
    ),
    bug("promote is early", "PROMOTE", &[("':scheduled', '-inf', ms,", "':scheduled', '-inf', ms + 300,")]),
    bug("promote leaves the schedule as it is", "PROMOTE", &[("redis.call('ZREM', Q .. ':scheduled', unpack(first))", "")]),
    bug("promote leaves the retries as they are", "PROMOTE", &[("redis.call('ZREM', Q .. ':retrying', unpack(rest))", "")]),
    bug(
        "promote leaves the state as it is",
        "PROMOTE",
        &[("if #changed > 0 then redis.call('HSET', Q .. ':s', unpack(changed)) end", "")],
    ),
    bug("promote rings for nobody", "PROMOTE", &[("if bell then ring() end", "")]),
    bug("claim takes a repeated number for a new one", "CLAIM", &[("if number == last and number > 0 then", "if false then")]),
    bug("claim takes a number from before", "CLAIM", &[("if number < last then return {'old'} end", "")]),
    bug("claim drops what the fetch had moved", "CLAIM", &[("if moved[i] ~= BELL then waiting", "if false then waiting")]),
    bug(
        "claim does not look at what the fetch had moved",
        "CLAIM",
        &[("local moved = redis.call('LRANGE', PROC, 0, -1)", "local moved = {}")],
    ),
    bug("claim gives a token twice", "CLAIM", &[("math.max((tonumber(before) or 0) + 1, us)", "tonumber(before) or us")]),
    bug(
        "claim takes what is no longer ready",
        "CLAIM",
        &[("local fits = body and not seen[id] and (not letter or letter == 'q')", "local fits = body and not seen[id]")],
    ),
    bug("claim compares no stamp", "CLAIM", &[("fits = stamp == stamps[i] or rest == 17", "fits = true")]),
    bug("claim runs nobody's running set", "CLAIM", &[("redis.call('SADD', RUN, unpack(ids))", "")]),
    bug(
        "claim keeps the key of what has started",
        "CLAIM",
        &[(
            "if redis.call('GET', Q .. ':u:' .. key) == id then redis.call('DEL', Q .. ':u:' .. key) end\n      elseif till",
            "local _ = 0\n      elseif till",
        )],
    ),
    bug("claim rings for nobody", "CLAIM", &[("if main == 0 and left > 0 then", "if false then")]),
    bug(
        "claim ignores the pause",
        "CLAIM",
        &[("local paused = redis.call('EXISTS', Q .. ':paused') == 1", "local paused = false")],
    ),
    bug("reap compares no term", "REAP", &[("if fence and fence > term then return {fence} end", "")]),
    bug(
        "reap leaves the owner in place",
        "REAP",
        &[("if string.sub(owner, 1, 4) ~= 'gone' then redis.call('HSET', OWNERS, inc, string.format('gone %.0f', ms)) end", "")],
    ),
    bug(
        "reap does not look at what the fetch had moved",
        "REAP",
        &[("local moved = redis.call('LRANGE', PROC, 0, limit - 1)", "local moved = {}")],
    ),
    bug("reap forgets a cancel", "REAP", &[("local cancelled = bit.band(flags, CANCEL) ~= 0", "local cancelled = false")]),
    bug("reap puts back without an entry", "REAP", &[("place(id, body, flags, true)", "")]),
    bug(
        "bury does not ask for the beat",
        "BURY",
        &[("if redis.call('EXISTS', Q .. ':beat:' .. ARGV[2]) == 1 then return 0 end", "")],
    ),
    bug(
        "requeue leaves the stamp as it is",
        "REQUEUE",
        &[("stamp = string.format('%.0f', math.max(tonumber(stamp) + 1, us))", "")],
    ),
    bug("enqueue takes no unique key", "ENQUEUE", &[("if till ~= '-' then redis.call('SET', Q .. ':u:' .. unique, id) end", "")]),
    bug(
        "cancel keeps the unique key",
        "CANCEL",
        &[("    free_unique(id, body)\n    redis.call('HSET'", "    redis.call('HSET'")],
    ),
];
