//! Which programs may be run: the patterns of `handlers.exec.allow`, compared part by part of the path.
//!
//! `*` stands for any characters inside one part, so `/opt/jobs/*` does not reach into `/opt/jobs/old/`. A path with
//! `.`, `..` or an empty part is refused and not repaired: nobody writes one by accident into a job.
//! Absent on purpose: symbolic links are followed by the system as always. Who may write into an allowed directory
//! may run what he likes.

/// Whether the program may be run; the error says what forbids it.
pub(super) fn check(program: &str, allow: &[String]) -> Result<(), String> {
    let Some(parts) = parts(program) else {
        return Err(format!("{program:?} is not an absolute path without \"..\", which handlers.exec.allow needs"));
    };
    if allow.iter().filter_map(|entry| self::parts(entry)).any(|pattern| fits(&parts, &pattern)) {
        Ok(())
    } else {
        Err(format!("{program:?} is not on handlers.exec.allow"))
    }
}

fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    parts.iter().all(|part| !matches!(*part, "" | "." | "..") && !part.contains('\0')).then_some(parts)
}

fn fits(parts: &[&str], pattern: &[&str]) -> bool {
    parts.len() == pattern.len() && parts.iter().zip(pattern).all(|(part, pattern)| part_fits(part, pattern))
}

fn part_fits(part: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return part == pattern };
    let Some(mut part) = part.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    // The earliest place for each piece leaves the most for those that follow.
    for piece in pieces {
        let Some(at) = part.find(piece) else { return false };
        part = &part[at + piece.len()..];
    }
    part.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(program: &str, allow: &[&str]) -> bool {
        check(program, &allow.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn patterns_stay_inside_one_part() {
        let list = ["/usr/bin/php*", "/opt/*/run.sh", "/opt/jobs/*", "/srv/a*b*c"];
        for program in [
            "/usr/bin/php",
            "/usr/bin/php8.3",
            "/opt/x/run.sh",
            "/opt/jobs/daily",
            "/srv/abc",
            "/srv/axxbyyc",
            "/srv/abcbc",
            "/srv/aabbcc",
        ] {
            assert!(allowed(program, &list), "{program}");
        }
        for program in [
            "php",
            "usr/bin/php",
            "./php",
            "/usr/bin/ph",
            "/usr/bin/php/x",
            "/usr/bin/../bin/php",
            "/usr//bin/php",
            "/usr/./bin/php",
            "/opt/x/y/run.sh",
            "/opt/run.sh",
            "/opt/x/run.shx",
            "/opt/jobs/",
            "/opt/jobs/old/daily",
            "/opt/jobs/..",
            "/opt/jobs/../../bin/sh",
            "/opt/jobs/\0",
            "/srv/ab",
            "/srv/acb",
            "/usr/bin/php\n/../sh",
            "/",
            "",
            "~/x",
            "/bin/sh",
        ] {
            assert!(!allowed(program, &list), "{program}");
        }
    }

    #[test]
    fn an_entry_that_is_no_path_allows_nothing() {
        for entry in ["", "*", "/", "sh", "/bin/../bin/sh", "bin/sh", "**"] {
            assert!(!allowed("/bin/sh", &[entry]), "{entry}");
        }
        assert!(allowed("/bin/sh", &["/bin/sh"]));
        assert!(check("/bin/sh", &[]).unwrap_err().contains("handlers.exec.allow"));
    }
}
