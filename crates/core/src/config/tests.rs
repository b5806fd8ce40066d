//! What holds of the configuration as a whole. The process's own environment is never touched.

mod bad;
mod secrets;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::backoff::Backoff;

/// A directory with a file of configuration, and an environment.
pub(super) struct Case {
    dir: tempfile::TempDir,
    pub(super) layers: Layers,
    pub(super) surroundings: Surroundings,
}

impl Case {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let surroundings = Surroundings { host_name: "host-1".to_owned(), ..Surroundings::default() };
        Self { dir, layers: Layers::default(), surroundings }
    }

    /// Writes a file next to the others; `$DIR` in it becomes their directory.
    pub(super) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text.replace("$DIR", &self.dir.path().display().to_string())).unwrap();
        path
    }

    pub(super) fn toml(mut self, text: &str) -> Self {
        self.layers.file = Some(self.file("p.toml", text));
        self
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.surroundings.env.push((name.into(), value.into()));
        self
    }

    pub(super) fn flag(mut self, flag: &str, key: &str, value: &str) -> Self {
        self.layers = self.layers.flag(flag, key, value);
        self
    }

    pub(super) fn load(&self) -> Result<Loaded, ConfigErrors> {
        Config::load_in(&self.layers, &self.surroundings)
    }

    pub(super) fn config(&self) -> Config {
        self.load().unwrap_or_else(|errors| panic!("{errors}")).config
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.load().expect_err("this configuration is wrong").to_string().lines().map(str::to_owned).collect()
    }
}

#[test]
fn defaults_are_the_contract() {
    let config = Case::new().config();
    assert_eq!(config.redis.url.to_string(), "redis://127.0.0.1:6379/0");
    assert_eq!(config.redis.namespace, "punctual");
    assert_eq!((config.redis.username(), config.redis.password().unwrap()), (None, None));
    assert_eq!(config.node.name, "host-1");
    assert_eq!((config.node.concurrency, config.node.strict), (64, false));
    assert_eq!(config.node.queues, BTreeMap::from([("default".to_owned(), 1)]));
    assert_eq!((config.node.heartbeat_every, config.node.dead_after), (Duration::from_secs(1), Duration::from_secs(5)));
    assert_eq!((config.lease.ttl, config.lease.renew_every), (Duration::from_secs(5), Duration::from_millis(1500)));
    assert_eq!((config.jobs.max_attempts, config.jobs.max_crashes), (5, 3));
    assert_eq!((config.jobs.timeout, config.jobs.max_payload), (Duration::from_secs(300), Bytes(262_144)));
    assert_eq!((config.retention.succeeded_max, config.retention.dead_max), (10_000, 100_000));
    assert_eq!(config.retention.dead, Duration::from_secs(30 * 86_400));
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:7070");
    assert_eq!((config.http.ops_listen, config.http.tokens.len()), (Listen::None, 0));
    assert!(!config.handlers.demo && config.handlers.exec.allow.is_empty() && config.handlers.http.allow.is_empty());
    let seconds = |name: &str, retry: u32| config.retry.presets[name].delay(retry, 0.5).as_secs();
    assert_eq!([1, 2, 3].map(|retry| seconds("fast", retry)), [5, 10, 20]);
    assert_eq!([1, 2, 3, 4, 5].map(|retry| seconds("slow", retry)), [600, 1200, 2400, 4800, 9600]);
    assert_eq!([1, 2, 9].map(|retry| seconds("default", retry)), [60, 120, 3600]);
    assert_eq!(["fast", "slow", "default"].map(|name| config.retry.presets[name].max_attempts), [Some(4), Some(6), Some(5)]);
    assert_eq!(Config { node: Node { name: "host-1".to_owned(), ..Config::default().node }, ..Config::default() }, config);
}

/// The file of defaults is the list of keys, so a key without a reader or a reader without a key cannot be.
#[test]
fn every_key_of_the_defaults_is_read_documented_and_shown() {
    let known = known_keys();
    let mut reader = Reader::new(Figment::new().merge(Layer::built_in()), Vec::new());
    build::config(&mut reader, "host-1");
    assert_eq!(reader.read().iter().copied().collect::<Vec<_>>(), known);

    let lines: Vec<&str> = keys::DEFAULTS.lines().collect();
    let shown = effective_json(&Case::new().load().unwrap());
    for key in &known {
        let path: Vec<&str> = key.split('.').collect();
        let line = lines::line_of(keys::DEFAULTS, &path).unwrap() - 1;
        assert!(lines[..line].iter().rev().find(|line| !line.is_empty()).unwrap().starts_with('#'), "{key} has no comment");
        assert!(shown.pointer(&format!("/{}", path.join("/"))).is_some(), "{key} is not shown");
    }
}

/// Users script against these names.
#[test]
fn names_of_keys_are_stable() {
    let names = "handlers.demo handlers.exec.allow handlers.http.allow http.listen http.ops_listen http.tokens jobs.max_attempts \
                 jobs.max_crashes jobs.max_payload jobs.timeout lease.renew_every lease.ttl log.format log.level \
                 node.concurrency node.dead_after node.drain_timeout node.heartbeat_every node.name node.on_isolation node.queues \
                 node.strict redis.allow_eviction redis.ca_file redis.namespace redis.password_file redis.url redis.username \
                 redis.wait_replicas retention.dead retention.dead_max retention.succeeded retention.succeeded_max retry.presets";
    assert_eq!(known_keys(), names.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn later_layers_win_and_sources_say_which() {
    let mut case = Case::new()
        .toml("[node]\nconcurrency = 2\nstrict = true\nname = \"file\"\n[redis]\nnamespace = \"file\"")
        .env("PUNCTUAL__NODE__NAME", "env")
        .env("PUNCTUAL__REDIS__NAMESPACE", "env")
        .flag("--namespace", "redis.namespace", "flag");
    case.layers = case.layers.command_default("dev", "handlers.demo", "true").command_default("dev", "node.concurrency", "1");
    let loaded = case.load().unwrap();
    let node = &loaded.config.node;
    assert_eq!((node.concurrency, node.strict, node.name.as_str()), (2, true, "env"));
    assert_eq!((loaded.config.redis.namespace.as_str(), loaded.config.handlers.demo), ("flag", true));
    assert_eq!(loaded.file, case.layers.file);
    let path = case.layers.file.as_ref().unwrap().display().to_string();
    for (key, source) in [
        ("node.concurrency", path.as_str()),
        ("node.strict", &path),
        ("node.name", "environment PUNCTUAL__NODE__NAME"),
        ("redis.namespace", "flag --namespace"),
        ("handlers.demo", "default of punctual dev"),
        ("lease.ttl", "built-in default"),
        ("node.queues", "built-in default"),
        ("http.tokens", "built-in default"),
        ("retry.presets.fast.base", "built-in default"),
    ] {
        assert_eq!(loaded.sources[key], source, "{key}");
    }
    for key in known_keys() {
        assert!(loaded.sources.keys().any(|source| source.starts_with(&key)), "{key}");
    }
    assert_eq!(effective_json(&loaded)["sources"]["node.name"], "environment PUNCTUAL__NODE__NAME");
}

#[test]
fn environment_is_text_that_each_key_reads_for_itself() {
    for name in ["0123456", "true", "1e3", "null", "[a]"] {
        let case = Case::new().env("PUNCTUAL__NODE__NAME", name);
        match name {
            "[a]" => assert!(case.lines()[0].starts_with("node.name: "), "brackets are not of a name"),
            _ => assert_eq!(case.config().node.name, name),
        }
    }
    let config = Case::new()
        .env("PUNCTUAL__REDIS__USERNAME", "007")
        .env("PUNCTUAL__REDIS__URL", "redis://:0123@h\n")
        .env("PUNCTUAL__REDIS__NAMESPACE", "12")
        .env("PUNCTUAL__NODE__CONCURRENCY", "8 ")
        .env("PUNCTUAL__NODE__STRICT", "true")
        .env("PUNCTUAL__NODE__HEARTBEAT_EVERY", "500ms")
        .env("PUNCTUAL__JOBS__MAX_PAYLOAD", "1024")
        .env("PUNCTUAL__RETENTION__DEAD", "0")
        .env("PUNCTUAL__HANDLERS__EXEC__ALLOW", " /usr/bin/php, /opt/*/run ")
        .env("PUNCTUAL__HANDLERS__HTTP__ALLOW", "[\"https://a.example/x,y\"]")
        .env("PUNCTUAL__NODE__QUEUES", "default=1, mail=3")
        .env("PUNCTUAL__RETRY__PRESETS__FAST__MAX_ATTEMPTS", "9")
        .env("PUNCTUAL__RETRY__PRESETS__FAST__FACTOR", "1.5")
        .env("PUNCTUAL__RETRY__PRESETS__MINE__BACKOFF", "list")
        .env("PUNCTUAL__RETRY__PRESETS__MINE__DELAYS", "1s,10s")
        .config();
    assert_eq!((config.redis.username(), config.redis.password().unwrap().as_deref()), (Some("007"), Some("0123")));
    assert_eq!((config.redis.namespace.as_str(), config.node.concurrency, config.node.strict), ("12", 8, true));
    assert_eq!((config.node.heartbeat_every, config.jobs.max_payload), (Duration::from_millis(500), Bytes(1024)));
    assert_eq!(config.retention.dead, Duration::ZERO);
    assert_eq!(config.handlers.exec.allow, ["/usr/bin/php", "/opt/*/run"]);
    assert_eq!(config.handlers.http.allow, ["https://a.example/x,y"]);
    assert_eq!(config.node.queues, BTreeMap::from([("default".to_owned(), 1), ("mail".to_owned(), 3)]));
    let (fast, mine) = (&config.retry.presets["fast"], &config.retry.presets["mine"]);
    assert_eq!((fast.max_attempts, fast.factor, fast.base), (Some(9), 1.5, Duration::from_secs(5)));
    assert_eq!((mine.backoff, mine.delays.len()), (Backoff::List, 2));
    let table = Case::new().env("PUNCTUAL__NODE__QUEUES", "{ mail = 3 }").config().node.queues;
    assert_eq!(table, BTreeMap::from([("mail".to_owned(), 3)]));
}

#[test]
fn other_programs_variables_are_ignored() {
    Case::new().env("PUNCTUAL_PORT", "tcp://10.0.0.1:80").env("PUNCTUAL_PORT_80_TCP", "?").env("punctual__x", "1").config();
}

#[test]
fn variable_with_one_underscore_too_few_is_named_and_not_ignored() {
    let lines = Case::new().env("PUNCTUAL_NODE__NAME", "a").lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("PUNCTUAL__NODE__NAME") && lines[0].starts_with("node.name"), "{lines:?}");
}

#[test]
fn naming_queues_replaces_them_and_a_preset_changes_by_value_or_as_a_whole() {
    let config = Case::new()
        .toml(
            "[node]\nqueues = { mail = 2 }\n[retry.presets.fast]\nbase = \"1s\"\n\
             [retry.presets.slow]\nbackoff = \"fixed\"\nbase = \"7s\"\n[retry.presets.new]\n",
        )
        .config();
    assert_eq!(config.node.queues, BTreeMap::from([("mail".to_owned(), 2)]));
    let presets = &config.retry.presets;
    assert_eq!((presets["fast"].base, presets["fast"].max_attempts), (Duration::from_secs(1), Some(4)));
    assert_eq!((presets["slow"].base, presets["slow"].max_attempts), (Duration::from_secs(7), None));
    assert_eq!((presets["new"].clone(), presets.len()), (RetryPolicy::default(), 4));
}

#[test]
fn a_named_file_must_exist_and_the_usual_ones_need_not() {
    let mut case = Case::new();
    case.layers.file = Some(case.dir.path().join("absent.toml"));
    assert!(case.lines()[0].starts_with("--config: cannot read "), "{:?}", case.lines());
    case.layers.file = None;
    case.surroundings.search = vec![case.dir.path().join("absent.toml"), case.file("second.toml", "[node]\nname = \"second\"")];
    let loaded = case.load().unwrap();
    assert_eq!((loaded.config.node.name.as_str(), loaded.file.as_ref()), ("second", case.surroundings.search.get(1)));
    case.surroundings.search[0] = case.file("first.toml", "");
    assert_eq!(case.load().unwrap().file.as_ref(), case.surroundings.search.first());
}

#[test]
fn empty_text_unsets() {
    let case = Case::new().toml("[redis]\nusername = \"u\"\npassword_file = \"/nowhere\"\n[node]\nname = \"n\"");
    let case =
        case.env("PUNCTUAL__REDIS__USERNAME", "").env("PUNCTUAL__REDIS__PASSWORD_FILE", "").env("PUNCTUAL__NODE__NAME", "");
    let config = case.config();
    assert_eq!((config.redis.username, config.redis.password_file, config.node.name.as_str()), (None, None, "host-1"));
}

#[test]
fn tokens_open_other_addresses() {
    let case = Case::new();
    case.file("token", "0123456789abcdef0123456789abcdef\n");
    let digest = "5".repeat(64);
    let case = case.toml(&format!(
        "[http]\nlisten = \"0.0.0.0:7070\"\n[[http.tokens]]\nname = \"ci\"\nrole = \"operate\"\ntoken_file = \"$DIR/token\"\n\
         queues = [\"mail\"]\n[[http.tokens]]\nname = \"root\"\nrole = \"admin\"\nsha256 = \"{digest}\"\n"
    ));
    let tokens = case.config().http.tokens;
    assert_eq!(tokens[0].digest, Digest::of("0123456789abcdef0123456789abcdef"));
    assert_eq!((tokens[0].role, tokens[0].queues.as_deref()), (Role::Operate, Some(&["mail".to_owned()][..])));
    assert_eq!((tokens[1].digest, tokens[1].queues.as_ref()), (Digest([0x55; 32]), None));
    assert!(Role::Read < Role::Operate && Role::Operate < Role::Admin);
    let inline = format!("[{{ name = \"e\", role = \"read\", sha256 = \"{digest}\" }}]");
    assert_eq!(Case::new().env("PUNCTUAL__HTTP__TOKENS", &inline).config().http.tokens[0].name, "e");
}
