//! The scripts as they are loaded: prelude, then one arrow. Called by digest; text only when the server has forgotten it.

use std::sync::LazyLock;

use redis::{Cmd, FromRedisValue, Pipeline};

use super::connect::{Link, StoreError};

const PRELUDE: &str = include_str!("prelude.lua");

/// One script.
pub(crate) struct Script {
    text: String,
    digest: String,
}

macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(source(stringify!($name))));)*

        /// Every script's stem and text, without the prelude; the prelude itself comes first.
        #[must_use]
        pub fn sources() -> Vec<(&'static str, &'static str)> {
            vec![("PRELUDE", PRELUDE), $((stringify!($name), source(stringify!($name)))),*]
        }
    };
}

scripts!(
    ENQUEUE, PROMOTE, CLAIM, SETTLE, REAP, SWEEP, LEAVE, NOTE, TRIM, CANCEL, REQUEUE, EDIT, DELETE, RESUME, ACQUIRE, RENEW,
    RELEASE, BURY, PROBE, REPAIR,
);

fn source(name: &str) -> &'static str {
    match name {
        "ENQUEUE" => include_str!("enqueue.lua"),
        "PROMOTE" => include_str!("promote.lua"),
        "CLAIM" => include_str!("claim.lua"),
        "SETTLE" => include_str!("settle.lua"),
        "REAP" => include_str!("reap.lua"),
        "SWEEP" => include_str!("sweep.lua"),
        "LEAVE" => include_str!("leave.lua"),
        "NOTE" => include_str!("note.lua"),
        "TRIM" => include_str!("trim.lua"),
        "CANCEL" => include_str!("cancel.lua"),
        "REQUEUE" => include_str!("requeue.lua"),
        "EDIT" => include_str!("edit.lua"),
        "DELETE" => include_str!("delete.lua"),
        "RESUME" => include_str!("resume.lua"),
        "ACQUIRE" => include_str!("acquire.lua"),
        "RENEW" => include_str!("renew.lua"),
        "RELEASE" => include_str!("release.lua"),
        "BURY" => include_str!("bury.lua"),
        "PROBE" => include_str!("probe.lua"),
        "REPAIR" => include_str!("repair.lua"),
        _ => unreachable!("the macro above names every script"),
    }
}

impl Script {
    fn new(text: &str) -> Self {
        let text = format!("{PRELUDE}\n{text}");
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, digest }
    }

    /// A call by digest: `tag` is the one declared key, `time` the test's time or empty.
    pub(crate) fn by_digest(&self, tag: &str, time: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(1).arg(tag).arg(time);
        command
    }

    fn by_text(&self, tag: &str, time: &str) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.text).arg(1).arg(tag).arg(time);
        command
    }

    /// Runs the script; `fill` adds its arguments and is called again when the server wants the text.
    ///
    /// The second call is safe: a server that answers NOSCRIPT has run nothing.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        link: &Link,
        tag: &str,
        time: &str,
        fill: impl Fn(&mut Cmd),
    ) -> Result<T, StoreError> {
        let mut command = self.by_digest(tag, time);
        fill(&mut command);
        match link.query(&command).await {
            Err(error) if error.text.contains("NOSCRIPT") || error.text.contains("NoScript") => {
                let mut command = self.by_text(tag, time);
                fill(&mut command);
                link.query(&command).await
            }
            answer => answer,
        }
    }
}

/// Loads every script, so that a pipeline of calls by digest finds them.
///
/// # Errors
/// When Redis cannot be reached or refuses scripts.
pub(crate) async fn load(link: &Link) -> Result<(), StoreError> {
    let mut pipeline = Pipeline::new();
    for (name, _) in sources().into_iter().skip(1) {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(Script::new(source(name)).text).ignore();
    }
    link.pipe::<()>(&pipeline).await
}
