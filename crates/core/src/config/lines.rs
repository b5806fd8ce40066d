//! Finds the line of a TOML file on which a key stands, for messages only.
//!
//! It reads headers and the left sides of assignments and knows no more of TOML; where it is wrong, a message lacks its line
//! or names one nearby. The parser itself keeps no positions of keys.

/// The line, from 1, that sets `path` or the table or inline value around it. Members of `[[tables]]` are counted from 0.
pub(super) fn line_of(text: &str, path: &[&str]) -> Option<usize> {
    let mut table: Vec<String> = Vec::new();
    let mut blocks: Vec<Vec<String>> = Vec::new();
    let mut open: Option<&str> = None;
    let mut best: Option<(usize, usize)> = None;
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if let Some(quotes) = open {
            if line.contains(quotes) {
                open = None;
            }
            continue;
        }
        let mut found = None;
        if let Some(header) = line.strip_prefix("[[") {
            if let Some((keys, _)) = keys(header).filter(|(_, rest)| rest.starts_with("]]")) {
                let seen = blocks.iter().filter(|block| **block == keys).count();
                blocks.push(keys.clone());
                table = keys;
                table.push(seen.to_string());
                found = Some(table.clone());
            }
        } else if let Some(header) = line.strip_prefix('[') {
            if let Some((keys, _)) = keys(header).filter(|(_, rest)| rest.starts_with(']')) {
                table.clone_from(&keys);
                found = Some(keys);
            }
        } else if let Some((keys, _)) = keys(line).filter(|(_, rest)| rest.starts_with('=')) {
            found = Some(table.iter().cloned().chain(keys).collect());
        }
        open = ["\"\"\"", "'''"].into_iter().find(|quotes| line.matches(quotes).count() % 2 == 1);
        if let Some(found) = found {
            let shared = found.iter().zip(path).take_while(|(found, wanted)| found == *wanted).count();
            // The whole path, or a table within it: a header stands for what is in it only as far as it goes.
            let fits = shared == path.len() || (shared == found.len() && shared > 0);
            if fits && best.is_none_or(|(length, _)| shared > length) {
                best = Some((shared, index + 1));
            }
        }
    }
    best.map(|(_, line)| line)
}

/// Reads `a . "b c" . d` and gives what follows it.
fn keys(text: &str) -> Option<(Vec<String>, &str)> {
    let mut keys = Vec::new();
    let mut rest = text.trim_start();
    loop {
        let quote = rest.chars().next().filter(|c| ['"', '\''].contains(c));
        let (key, tail) = if let Some(quote) = quote {
            rest[1..].split_once(quote)?
        } else {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).unwrap_or(rest.len());
            rest.split_at(end)
        };
        if key.is_empty() && quote.is_none() {
            return None;
        }
        keys.push(key.to_owned());
        rest = tail.trim_start();
        match rest.strip_prefix('.') {
            Some(tail) => rest = tail.trim_start(),
            None => return Some((keys, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# head
top = 1
[node]
concurrency = 64
"quoted key" = 1
text = """
strict = true
"""
strict = false
queues = { default = 1 }

[retry.presets.fast]
base = "1s"
[[http.tokens]]
name = "a"
[[http.tokens]]
name = "b"
list = [
  "x=y",
]
[log]
format.deep = 1
"#;

    #[test]
    fn lines_of_keys() {
        for (path, line) in [
            ("top", Some(2)),
            ("node", Some(3)),
            ("node.concurrency", Some(4)),
            ("node.quoted key", Some(5)),
            ("node.strict", Some(9)),
            ("node.queues.default", Some(10)),
            ("retry.presets.fast.base", Some(13)),
            ("retry.presets", Some(12)),
            ("http.tokens", Some(14)),
            ("http.tokens.0.name", Some(15)),
            ("http.tokens.1.name", Some(17)),
            ("http.tokens.1.role", Some(16)),
            ("log.format.deep", Some(22)),
            ("nothing", None),
        ] {
            assert_eq!(line_of(TEXT, &path.split('.').collect::<Vec<_>>()), line, "{path}");
        }
    }
}
