//! What a configuration takes from the process around it, as a value, so that tests need not change the process.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The environment, the places where a file may be, and the name of the machine. `Debug` hides the environment, which holds
/// the secrets of every program.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The environment; only names that begin with `PUNCTUAL__` matter.
    pub env: Vec<(OsString, OsString)>,
    /// Files of which the first that exists is read when none is named.
    pub search: Vec<PathBuf>,
    /// The node's name when none is set, 1 to 253 of `A-Za-z0-9._-`.
    pub host_name: String,
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("search", &self.search).field("host_name", &self.host_name).finish_non_exhaustive()
    }
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let kernel = ["/proc/sys/kernel/hostname", "/etc/hostname"];
        let kernel = kernel.iter().find_map(|path| std::fs::read_to_string(path).ok());
        let host_name = host_name(&env, kernel.as_deref());
        Self { env, search: vec!["config/punctual.toml".into(), "/etc/punctual/punctual.toml".into()], host_name }
    }
}

/// `POD_NAME`, else `HOSTNAME`, else the kernel's name, else `node`; never empty, and with only the characters of a name.
fn host_name(env: &[(OsString, OsString)], kernel: Option<&str>) -> String {
    let variable = |wanted: &str| env.iter().find(|(name, _)| name == wanted).and_then(|(_, value)| value.to_str());
    let names = [variable("POD_NAME"), variable("HOSTNAME"), kernel];
    let name = names.into_iter().flatten().map(str::trim).find(|name| !name.is_empty()).unwrap_or("node");
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.chars().take(253).map(|c| if fits(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_prefers_the_pod_and_is_never_empty() {
        let env = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| (name.into(), value.into())).collect::<Vec<_>>();
        let both = env(&[("HOSTNAME", "host"), ("POD_NAME", "pod-1")]);
        assert_eq!(host_name(&both, Some("kernel")), "pod-1");
        assert_eq!(host_name(&env(&[("POD_NAME", " "), ("HOSTNAME", "host")]), None), "host");
        assert_eq!(host_name(&[], Some("kernel\n")), "kernel");
        assert_eq!(host_name(&[], Some("größe <b>\n")), "gr--e--b-");
        assert_eq!(host_name(&[], None), "node");
        assert!(!Surroundings::of_process().host_name.is_empty());
    }
}
