//! Configurations that are refused: each gives a line that begins with the key.

use super::*;

/// A file's text, and how one line must begin.
const FILES: &[(&str, &str)] = &[
    // Keys that do not exist, among them those of features to come.
    ("nodes.name = \"x\"", "nodes.name: unknown key, the nearest is node.name (from "),
    ("[node]\nconcurency = 1", "node.concurency: unknown key, the nearest is node.concurrency (from "),
    ("concurrency = 1", "concurrency: unknown key, the nearest is node.concurrency"),
    ("[schedules]\nfiles = [\"a\"]", "schedules.files: unknown key"),
    ("[queues.mail]\nshards = 4", "queues.mail.shards: unknown key"),
    ("[queues.mail.limits]\nrate = 4", "queues.mail.limits.rate: unknown key"),
    ("[node]\nroles = [\"a\"]", "node.roles: unknown key"),
    ("[node]\nmax_rss = \"1 GiB\"", "node.max_rss: unknown key"),
    ("[alerts]", "alerts: unknown key"),
    ("\"node.name\" = \"x\"", "node.name: unknown key"),
    ("\"a\\nb\" = 1", "a\\nb: unknown key"),
    ("[redis.url]\nhost = \"x\"", "redis.url: expected text in quotes"),
    ("node = 5", "node: is a table of keys, not a value"),
    // Redis.
    ("[redis]\nurl = 6379", "redis.url: expected text in quotes"),
    ("[redis]\nurl = \"\"", "redis.url: has no scheme"),
    ("[redis]\nurl = \"http://h\"", "redis.url: has an unknown scheme"),
    ("[redis]\nurl = \"redis+sentinel://a,b/m\"", "redis.url: comes with a later release: "),
    ("[redis]\nurl = \"redis+cluster://a,b\"", "redis.url: comes with a later release: "),
    ("[redis]\nurl = \"redis://h/x\"", "redis.url: has a database"),
    ("[redis]\nnamespace = \"\"", "redis.namespace: must be 1 to 64 of"),
    ("[redis]\nnamespace = \"Upper\"", "redis.namespace: must be 1 to 64 of"),
    ("[redis]\nnamespace = \"a{b}\"", "redis.namespace: must be 1 to 64 of"),
    ("[redis]\nnamespace = 2026-01-01", "redis.namespace: expected text in quotes, got a date"),
    ("[redis]\nusername = 7", "redis.username: expected text in quotes, got 7"),
    ("[redis]\npassword_file = \"/no/such/file\"", "redis.password_file: cannot read /no/such/file"),
    ("[redis]\npassword_file = \"$DIR/empty\"", "redis.password_file: "),
    ("[redis]\nca_file = \"/no/such/file\"", "redis.ca_file: cannot read /no/such/file"),
    ("[redis]\nca_file = \"$DIR/empty\"", "redis.ca_file: "),
    ("[redis]\nca_file = \"$DIR/ca.pem\"", "redis.ca_file: only serves rediss://"),
    ("[redis]\nwait_replicas = 1", "redis.wait_replicas: waiting for replicas comes with a later release"),
    ("[redis]\nwait_replicas = -1", "redis.wait_replicas: must be at least 0, got -1"),
    ("[redis]\nallow_eviction = 1", "redis.allow_eviction: expected true or false, got 1"),
    // The node.
    ("[node]\nname = \"a b\"", "node.name: must be 1 to 253 of"),
    ("[node]\nconcurrency = 0", "node.concurrency: must be at least 1, got 0 (from "),
    ("[node]\nconcurrency = -1", "node.concurrency: must be at least 1, got -1"),
    ("[node]\nconcurrency = 100001", "node.concurrency: must be at most 100000, got 100001"),
    ("[node]\nconcurrency = 9223372036854775807", "node.concurrency: must be at most 100000"),
    ("[node]\nconcurrency = 1.5", "node.concurrency: expected a whole number, got 1.5"),
    ("[node]\nconcurrency = \"64\"", "node.concurrency: expected a whole number, got \"64\""),
    ("[node]\nconcurrency = [1]", "node.concurrency: expected a whole number, got a list"),
    ("[node]\nqueues = {}", "node.queues: must name at least one queue"),
    ("[node]\nqueues = { mail = 0 }", "node.queues: the weight of mail must be at least 1, got 0"),
    ("[node]\nqueues = { mail = 1001 }", "node.queues: the weight of mail must be at most 1000"),
    ("[node]\nqueues = { mail = \"a\" }", "node.queues: the weight of mail must be a whole number"),
    ("[node]\nqueues = { Mail = 1 }", "node.queues: must be 1 to 64 of"),
    ("[node]\nqueues = [\"mail\"]", "node.queues: expected queues with weights"),
    ("[node]\nstrict = \"yes\"", "node.strict: expected true or false"),
    ("[node]\nheartbeat_every = 5", "node.heartbeat_every: \"5\" has no unit; write for example \"5s\""),
    ("[node]\nheartbeat_every = \"5\"", "node.heartbeat_every: \"5\" has no unit"),
    ("[node]\nheartbeat_every = \"5 parsecs\"", "node.heartbeat_every: \"5 parsecs\" is not a duration"),
    ("[node]\nheartbeat_every = \"49ms\"", "node.heartbeat_every: must be at least 50ms, got 49ms"),
    ("[node]\nheartbeat_every = \"-5s\"", "node.heartbeat_every: \"-5s\" is not a duration"),
    ("[node]\nheartbeat_every = true", "node.heartbeat_every: expected a duration such as"),
    (
        "[node]\nheartbeat_every = \"2s\"",
        "node.dead_after: must be at least 3 × node.heartbeat_every = 6s, got 5s; node.heartbeat_every = 2s from ",
    ),
    ("[node]\ndead_after = \"2s\"", "node.dead_after: must be at least 3 × node.heartbeat_every = 3s, got 2s"),
    ("[node]\ndead_after = \"10years\"", "node.dead_after: must be at most 1h"),
    ("[node]\ndrain_timeout = \"61m\"", "node.drain_timeout: must be at most 1h"),
    ("[node]\ndrain_timeout = \"1M\"", "node.drain_timeout: the unit M is refused"),
    ("[node]\non_isolation = \"stop\"", "node.on_isolation: must be one of continue, cancel, got \"stop\""),
    // Lease, jobs, retries, retention.
    ("[lease]\nttl = \"1s\"", "lease.ttl: must be at least 3 × lease.renew_every"),
    ("[lease]\nttl = \"1h\"", "lease.ttl: must be at most 10m"),
    ("[lease]\nrenew_every = \"0s\"", "lease.renew_every: must be at least 50ms, got 0s"),
    ("[jobs]\nmax_attempts = 0", "jobs.max_attempts: must be at least 1"),
    ("[jobs]\ntimeout = \"0s\"", "jobs.timeout: must be at least 1ms"),
    ("[jobs]\nmax_crashes = 0", "jobs.max_crashes: must be at least 1"),
    ("[jobs]\nmax_payload = \"17 MiB\"", "jobs.max_payload: must be at most 16 MiB, got 17 MiB"),
    ("[jobs]\nmax_payload = 0", "jobs.max_payload: must be at least 1 B"),
    ("[jobs]\nmax_payload = -1", "jobs.max_payload: \"-1\" is not a size"),
    ("[jobs]\nmax_payload = \"1 MB\"", "jobs.max_payload: \"1 MB\" is not a size"),
    ("[retry]\npresets = \"fast\"", "retry.presets: "),
    ("[retry.presets]\nfast = \"5s\"", "retry.presets.fast: must be a table"),
    ("[retry.presets.Fast]\nbase = \"5s\"", "retry.presets.Fast: must be 1 to 64 of"),
    ("[retry.presets.fast]\nbas = \"5s\"", "retry.presets.fast.bas: unknown key, the nearest is retry.presets.fast.base (from "),
    ("[retry.presets.fast]\nbase = 5", "retry.presets.fast.base: "),
    ("[retry.presets.fast]\nfactor = 0.5", "retry.presets.fast.factor: must be from 1 to 100, got 0.5"),
    ("[retry.presets.fast]\nfactor = \"2\"", "retry.presets.fast.factor: "),
    ("[retry.presets.fast]\njitter = 2", "retry.presets.fast.jitter: must be from 0 to 1"),
    ("[retry.presets.fast]\nmax_attempts = 0", "retry.presets.fast.max_attempts: must be at least 1"),
    ("[retry.presets.new]\nbackoff = \"list\"", "retry.presets.new.delays: must name at least one wait"),
    ("[retry.presets.new]\nbackoff = \"random\"", "retry.presets.new.backoff: unknown variant"),
    ("[retry.presets.new]\ndelays = [1]", "retry.presets.new.delays: expected a list of texts"),
    ("[retention]\nsucceeded = 5", "retention.succeeded: \"5\" has no unit"),
    ("[retention]\nsucceeded_max = -1", "retention.succeeded_max: must be at least 0"),
    ("[retention]\ndead = \"forever\"", "retention.dead: \"forever\" is not a duration"),
    ("[retention]\ndead_max = \"all\"", "retention.dead_max: expected a whole number"),
    // HTTP.
    ("[http]\nlisten = \"7070\"", "http.listen: must be none or an address with a port"),
    ("[http]\nlisten = \"0.0.0.0:7070\"", "http.listen: 0.0.0.0:7070 can be reached from other machines"),
    ("[http]\nlisten = \"[::]:7070\"", "http.listen: [::]:7070 can be reached from other machines"),
    ("[http]\nops_listen = \"127.0.0.1:7070\"", "http.ops_listen: must differ from http.listen"),
    ("[http]\nops_listen = \"0.0.0.0:7070\"", "http.ops_listen: must differ from http.listen"),
    ("[http]\ntokens = \"default_token\"", "http.tokens: expected a list of tables"),
    ("[http]\ntokens = [\"default_token\"]", "http.tokens[0]: expected a table"),
    ("[[http.tokens]]\nname = \"a\"\nrole = \"read\"", "http.tokens[0].token_file: is missing"),
    ("[[http.tokens]]\nrole = \"read\"\nsha256 = \"$HEX\"", "http.tokens[0].name: is missing"),
    ("[[http.tokens]]\nname = \"a\"\nsha256 = \"$HEX\"", "http.tokens[0].role: is missing"),
    ("[[http.tokens]]\nname = \"\"\nrole = \"read\"\nsha256 = \"$HEX\"", "http.tokens[0].name: must be 1 to 64 of"),
    (
        "[[http.tokens]]\nname = \"a\"\nrole = \"root\"\nsha256 = \"$HEX\"",
        "http.tokens[0].role: must be one of read, operate, admin",
    ),
    ("[[http.tokens]]\nname = \"a\"\nrole = \"read\"\nsha256 = \"abc\"", "http.tokens[0].sha256: must be 64 hexadecimal digits"),
    ("[[http.tokens]]\nname = \"a\"\nrole = \"read\"\nsha256 = \"$NOTHING\"", "http.tokens[0].sha256: is the SHA-256 of nothing"),
    ("[[http.tokens]]\nname = \"a\"\nrole = \"read\"\ntoken_file = \"$DIR/short\"", "http.tokens[0].token_file: "),
    (
        "[[http.tokens]]\nname = \"a\"\nrole = \"read\"\ntoken_file = \"/no/such\"",
        "http.tokens[0].token_file: cannot read /no/such",
    ),
    (
        "[[http.tokens]]\nname = \"a\"\nrole = \"read\"\ntoken_file = \"x\"\nsha256 = \"$HEX\"",
        "http.tokens[0].sha256: stands beside",
    ),
    (
        "[[http.tokens]]\nname = \"a\"\nrole = \"read\"\nsha256 = \"$HEX\"\nqueues = []",
        "http.tokens[0].queues: must name at least one",
    ),
    (
        "[[http.tokens]]\nname = \"a\"\nrole = \"read\"\nsha256 = \"$HEX\"\nqueues = [\"A\"]",
        "http.tokens[0].queues: must be 1 to 64 of",
    ),
    (
        "[[http.tokens]]\nname = \"a\"\nrole = \"read\"\nsha = \"\"\nsha256 = \"$HEX\"",
        "http.tokens[0].sha: unknown key, the nearest is http.tokens[].sha256",
    ),
    (
        "[http]\ntokens = [$A, { name = \"a\", role = \"admin\", sha256 = \"$TOKEN\" }]",
        "http.tokens[1].name: \"a\" is used twice",
    ),
    ("[http]\ntokens = [$A, $B]", "http.tokens[1]: is the same token as another one"),
    // Log and handlers.
    ("[log]\nformat = \"xml\"", "log.format: must be one of auto, json, pretty, got \"xml\""),
    ("[log]\nlevel = \"inof\"", "log.level: must be one of error, warn"),
    ("[log]\nlevel = \"\"", "log.level: must be one of error, warn"),
    ("[handlers]\ndemo = \"on\"", "handlers.demo: expected true or false, got \"on\""),
    ("[handlers]\nexec.allow = \"/bin/ls\"", "handlers.exec.allow: expected a list of texts"),
    ("[handlers]\nexec.allow = [\"ls\"]", "handlers.exec.allow: must hold absolute paths"),
    ("[handlers]\nhttp.allow = [\"example.com\"]", "handlers.http.allow: must hold URL prefixes"),
    ("[handlers]\nhttp.allow = [7]", "handlers.http.allow: expected a list of texts"),
];

#[test]
fn each_bad_file_names_its_key() {
    assert!(FILES.len() >= 60);
    for (text, begins) in FILES {
        let case = Case::new();
        case.file("empty", "");
        case.file("short", "changeme");
        case.file("ca.pem", "-----BEGIN CERTIFICATE-----");
        let entry = |name: &str| format!("{{ name = \"{name}\", role = \"read\", sha256 = \"$HEX\" }}");
        let text = text.replace("$A", &entry("a")).replace("$B", &entry("b")).replace("$HEX", &"5".repeat(64));
        let text = text.replace("$TOKEN", &"6".repeat(64));
        let nothing: String = Digest::of("").0.iter().map(|byte| format!("{byte:02x}")).collect();
        let lines = case.toml(&text.replace("$NOTHING", &nothing)).lines();
        assert_eq!(lines.iter().filter(|line| line.starts_with(begins)).count(), 1, "{text}\nwants {begins:?} in {lines:#?}");
        assert_eq!(lines.len(), 1, "{text}\nsays more than it should: {lines:#?}");
        assert!(lines[0].contains("(from "), "{lines:?} has no source");
    }
}

#[test]
fn each_bad_variable_names_its_key_and_itself() {
    for (name, value, begins) in [
        ("NODE__CONCURRENCY", "0", "node.concurrency: must be at least 1, got 0 "),
        ("NODE__CONCURRENCY", "", "node.concurrency: expected a whole number, got \"\" "),
        ("NODE__CONCURRENCY", "1e2", "node.concurrency: expected a whole number, got \"1e2\" "),
        ("NODE__STRICT", "1", "node.strict: expected true or false, got \"1\" "),
        ("NODE__QUEUES", "default", "node.queues: expected queues with weights such as default=1,mail=3, got \"default\" "),
        ("NODE__QUEUES", "a=1,a=2", "node.queues: names a twice "),
        ("NODE__QUEUES", "{ a = ", "node.queues: expected queues with weights "),
        ("NODE__QUEUES", "", "node.queues: must name at least one queue"),
        ("NODE__QUEUES__MAIL", "1", "node.queues.mail: set node.queues as a whole"),
        ("NODE__DEAD_AFTER", "1s", "node.dead_after: must be at least 3 × "),
        ("NODE", "x", "node: is a table of keys"),
        ("NODE___NAME", "x", "node._name: unknown key, the nearest is node.name "),
        ("", "x", ": unknown key"),
        ("REDIS__ULR", "x", "redis.ulr: unknown key, the nearest is redis.url "),
        ("REDIS__PASSWORD", "x", "redis.password: unknown key, the nearest is redis.password_file "),
        ("HTTP__TOKENS", "default_token", "http.tokens: expected a list of tables"),
        ("HTTP__TOKENS__0__NAME", "a", "http.tokens.0.name: set http.tokens as a whole"),
        ("HTTP__TOKENS", "[{ name = \"a\" }]", "http.tokens[0].role: is missing "),
        ("HANDLERS__EXEC__ALLOW", "[\"/bin/ls\"", "handlers.exec.allow: expected a list of texts"),
        ("RETRY__PRESETS", "{}", "retry.presets: set single values"),
        ("RETRY__PRESETS__FAST", "5s", "retry.presets.fast: set single values"),
        ("RETRY__PRESETS__FAST__BAS", "5s", "retry.presets.fast.bas: unknown key"),
        ("RETRY__PRESETS__FAST__FACTOR", "two", "retry.presets.fast.factor: expected a number, got \"two\" "),
        ("RETRY__PRESETS__FAST__JITTER", "NaN", "retry.presets.fast.jitter: "),
        ("RETRY__PRESETS__FAST__BASE", "5", "retry.presets.fast.base: \"5\" has no unit"),
    ] {
        let name = format!("PUNCTUAL__{name}");
        let lines = Case::new().env(&name, value).lines();
        let from = format!("(from environment {name})");
        let fits = |line: &String| line.starts_with(begins) && line.ends_with(&from);
        assert!(lines.iter().any(fits), "{name}={value} wants {begins:?} in {lines:#?}");
    }
}

#[cfg(unix)]
#[test]
fn bytes_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStringExt;
    let mut case = Case::new();
    case.surroundings.env.push(("PUNCTUAL__NODE__NAME".into(), std::ffi::OsString::from_vec(vec![0xff])));
    assert_eq!(case.lines(), ["node.name: is not UTF-8 text (from environment PUNCTUAL__NODE__NAME)"]);
}

#[test]
fn all_layers_are_reported_at_once_with_their_places() {
    let case = Case::new()
        .toml("[node]\nconcurrency = 0\ndead_after = \"1s\"\n\n[jobs]\ntimeout = 5\ntypo = 1")
        .env("PUNCTUAL__LEASE__TTL", "1s")
        .env("PUNCTUAL__NODE__CONCURENCY", "1")
        .flag("--namespace", "redis.namespace", "A");
    let path = case.layers.file.as_ref().unwrap().display().to_string();
    assert_eq!(
        case.lines(),
        [
            format!("jobs.typo: unknown key, the nearest is jobs.timeout (from {path} line 7)"),
            "node.concurency: unknown key, the nearest is node.concurrency (from environment PUNCTUAL__NODE__CONCURENCY)".to_owned(),
            "redis.namespace: must be 1 to 64 of a-z, 0-9, _ and -, got \"A\" (from flag --namespace)".to_owned(),
            format!("node.concurrency: must be at least 1, got 0 (from {path} line 2)"),
            format!("jobs.timeout: \"5\" has no unit; write for example \"5s\" or \"5ms\" (from {path} line 6)"),
            format!(
                "node.dead_after: must be at least 3 × node.heartbeat_every = 3s, got 1s; node.heartbeat_every = 1s from built-in \
                 default (from {path} line 3)"
            ),
            "lease.ttl: must be at least 3 × lease.renew_every = 4s 500ms, got 1s; lease.renew_every = 1s 500ms from built-in default \
             (from environment PUNCTUAL__LEASE__TTL)"
                .to_owned(),
        ]
    );
}

#[test]
fn a_file_that_is_not_toml_is_located() {
    let case = Case::new().toml("[node]\nname = \"a\"\n  strict = maybe\n").env("PUNCTUAL__NOD__X", "1");
    let lines = case.lines();
    assert!(lines[0].contains("p.toml:3:12: "), "{lines:?}");
    assert!(lines[1].starts_with("nod.x: unknown key"), "{lines:?}");
    let case = Case::new().env("PUNCTUAL__NODE__NAME", "a").env("PUNCTUAL__node__NAME", "b");
    assert!(case.lines()[0].starts_with("node.name: is set twice"), "{:?}", case.lines());
}
