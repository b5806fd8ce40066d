//! Settings that are one of a few words.

use std::fmt;
use std::net::SocketAddr;

/// What running jobs do while Redis is out of reach for longer than `node.dead_after`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnIsolation {
    /// They run on, and may run twice: other nodes may take them over by then.
    #[default]
    Continue,
    /// They are cancelled.
    Cancel,
}

impl fmt::Display for OnIsolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Continue => "continue",
            Self::Cancel => "cancel",
        })
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One flat object a line.
    Json,
    /// For people.
    Pretty,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Json => "json",
            Self::Pretty => "pretty",
        })
    }
}

/// Where a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    None,
    /// At this address; port 0 takes a free one.
    At(SocketAddr),
}

impl Listen {
    /// Reads `none`, an address with a port, or `localhost` with a port.
    ///
    /// # Errors
    /// A line that shows a right one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let address = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        match address.as_deref().unwrap_or(text).parse() {
            _ if text == "none" => Ok(Self::None),
            Ok(address) => Ok(Self::At(address)),
            Err(_) => Err(format!(
                "must be none or an address with a port, such as 127.0.0.1:7070 or [::]:7070, got {}",
                super::keys::quoted(text)
            )),
        }
    }

    /// The address, if there is one.
    #[must_use]
    pub fn addr(self) -> Option<SocketAddr> {
        match self {
            Self::None => None,
            Self::At(address) => Some(address),
        }
    }

    /// Whether other machines may reach it.
    #[must_use]
    pub fn is_public(self) -> bool {
        self.addr().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::At(address) => write!(f, "{address}"),
        }
    }
}

/// Checks a filter of `tracing`: a level, and after commas more levels or `TARGET=LEVEL`.
///
/// `tracing` itself takes a misspelt level for the name of a target and then logs next to nothing, so a bare word has to be
/// a level here.
pub(super) fn filter(text: &str) -> Result<(), String> {
    let levels = ["error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| levels.iter().any(|level| word.eq_ignore_ascii_case(level));
    for directive in text.split(',') {
        let fits = match directive.split_once('=') {
            None => is_level(directive),
            Some((target, level)) => {
                let named = target.chars().all(|c| c.is_ascii_alphanumeric() || "_:.-".contains(c)) && !target.is_empty();
                named && (is_level(level) || level.eq_ignore_ascii_case("off"))
            }
        };
        if !fits {
            let shown = super::keys::quoted(directive);
            return Err(format!(
                "must be one of {}, or such levels and TARGET=LEVEL joined by commas, got {shown}",
                levels.join(", ")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_means_reachable_from_elsewhere() {
        for (text, public) in [
            ("none", false),
            ("127.0.0.1:0", false),
            ("127.9.9.9:1", false),
            ("localhost:80", false),
            ("[::1]:80", false),
            ("[::ffff:127.0.0.1]:80", false),
            ("0.0.0.0:80", true),
            ("[::]:80", true),
            ("10.0.0.1:80", true),
        ] {
            assert_eq!(Listen::parse(text).unwrap().is_public(), public, "{text}");
        }
        for text in ["", "0.0.0.0", ":80", "80", "127.0.0.1:65536", "example.com:80", "127.0.0.1:80/x", "None"] {
            assert!(Listen::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn filters() {
        for text in ["info", "TRACE", "info,hyper=off", "warn,punctual_node::actors::promoter=debug"] {
            assert_eq!(filter(text), Ok(()), "{text}");
        }
        for text in ["", "inof", "off", "hyper", "info,", "info, hyper=warn", "=info", "hyper=", "[span{x=1}]=info", "5"] {
            assert!(filter(text).is_err(), "{text}");
        }
    }
}
