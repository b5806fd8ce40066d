//! Who may use the API: `[[http.tokens]]`.
//!
//! A token is kept as its SHA-256 only; nothing here can show it. There is no built-in token, and none that is short.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use figment::value::{Dict, Tag, Value};
use sha2::{Digest as _, Sha256};

use super::keys::{nearest, quoted, slug};
use super::read::{Given, Reader, one_of, read_text, toml_value};

const KEY: &str = "http.tokens";
const FIELDS: [&str; 5] = ["name", "role", "sha256", "token_file", "queues"];

/// Shortest token, in characters: 32 hexadecimal digits are 128 bits.
const SHORTEST: usize = 32;

/// What a token allows; each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Every GET but the audit.
    Read,
    /// Actions on jobs, queues, schedules and nodes.
    Operate,
    /// Everything.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        })
    }
}

/// The SHA-256 of a token. `Debug` hides it: a digest of a weak secret can be searched for.
///
/// It is compared by `==` only to find double entries; a request's token must be compared in constant time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of a token as a client sends it.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One of `http.tokens`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Who it is, for the audit; 1 to 64 of `A-Za-z0-9._-`, unique.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// What a request's token must hash to; unique.
    pub digest: Digest,
    /// The only queues it reaches, at least one; absent = all.
    pub queues: Option<Vec<String>>,
}

/// Reads all tokens; a wrong one becomes problems and is left out.
pub(super) fn tokens(reader: &mut Reader) -> Vec<Token> {
    let given = reader.given(KEY);
    let list = match &given.value {
        Value::String(_, text) if given.text && text.trim().is_empty() => Some(Vec::new()),
        Value::String(_, text) if given.text => toml_value(text).and_then(Value::into_array),
        other => other.clone().into_array(),
    };
    let Some(list) = list else {
        reader
            .refuse(KEY, "expected a list of tables such as [{ name = \"ci\", role = \"read\", token_file = \"…\" }]".to_owned());
        return Vec::new();
    };
    let mut tokens: Vec<Token> = Vec::new();
    for (index, entry) in list.into_iter().enumerate() {
        let tag = if given.text { given.value.tag() } else { entry.tag() };
        let mut problems = Vec::new();
        let token = match entry {
            Value::Dict(_, fields) => token(&fields, &mut problems),
            _ => {
                problems.push((String::new(), "expected a table with name, role and token_file or sha256".to_owned()));
                None
            }
        };
        if let Some(token) = token {
            if tokens.iter().any(|other| other.name == token.name) {
                problems.push(("name".to_owned(), format!("{} is used twice", quoted(&token.name))));
            }
            if tokens.iter().any(|other| other.digest == token.digest) {
                problems
                    .push((String::new(), "is the same token as another one, so its name and role would be a guess".to_owned()));
            }
            tokens.push(token);
        }
        for (field, message) in problems {
            refuse(reader, index, &field, message, tag);
        }
    }
    tokens
}

fn refuse(reader: &mut Reader, index: usize, field: &str, message: String, tag: Tag) {
    let index = index.to_string();
    let mut path: Vec<&str> = KEY.split('.').collect();
    path.extend([index.as_str(), field]);
    let origin = reader.origin(tag, &path);
    let dot = if field.is_empty() { "" } else { "." };
    reader.refuse_from(KEY, format!("{KEY}[{index}]{dot}{}", field.escape_debug()), message, origin);
}

fn token(fields: &Dict, problems: &mut Vec<(String, String)>) -> Option<Token> {
    for field in fields.keys().filter(|field| !FIELDS.contains(&field.as_str())) {
        problems.push((field.clone(), format!("unknown key, the nearest is {KEY}[].{}", nearest(field, &FIELDS))));
    }
    let mut note = |field: &str, message: String| problems.push((field.to_owned(), message));
    let mut texts = BTreeMap::new();
    for field in ["name", "role", "sha256", "token_file"] {
        match fields.get(field).map(Value::as_str) {
            Some(Some(text)) => drop(texts.insert(field, text)),
            // Not the value itself: any of them may be a token in the wrong place.
            Some(None) => note(field, "expected text in quotes".to_owned()),
            None if ["name", "role"].contains(&field) => note(field, "is missing".to_owned()),
            None => {}
        }
    }
    let name = texts.get("name").and_then(|name| named(name).map_err(|message| note("name", message)).ok());
    let role = texts
        .get("role")
        .and_then(|role| one_of(role, &[Role::Read, Role::Operate, Role::Admin]).map_err(|message| note("role", message)).ok());
    let digest = match (texts.get("sha256"), texts.get("token_file")) {
        (Some(_), Some(_)) => Err(("sha256", "stands beside token_file; one of the two is enough".to_owned())),
        (Some(hex), None) => from_hex(hex).map_err(|message| ("sha256", message)),
        (None, Some(path)) => from_file(Path::new(path)).map_err(|message| ("token_file", message)),
        // A value of the wrong kind was noted above.
        (None, None) if ["sha256", "token_file"].iter().any(|field| fields.contains_key(*field)) => return None,
        (None, None) => Err(("token_file", "is missing; one of token_file and sha256 is needed".to_owned())),
    };
    let digest = digest.map_err(|(field, message)| note(field, message)).ok();
    let queues = match fields.get("queues").map(queues).transpose() {
        Ok(queues) => queues,
        Err(message) => {
            note("queues", message);
            return None;
        }
    };
    Some(Token { name: name?, role: role?, digest: digest?, queues })
}

fn named(name: &str) -> Result<String, String> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    if (1..=64).contains(&name.len()) && name.bytes().all(fits) {
        Ok(name.to_owned())
    } else {
        Err(format!("must be 1 to 64 of A-Z, a-z, 0-9, . _ and -, got {}", quoted(name)))
    }
}

fn queues(value: &Value) -> Result<Vec<String>, String> {
    let list = Given { value: value.clone(), text: false }.list()?;
    if list.is_empty() {
        return Err("must name at least one queue; leave it out to allow all".to_owned());
    }
    list.iter().try_for_each(|queue| slug(queue))?;
    Ok(list)
}

fn from_hex(hex: &str) -> Result<Digest, String> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err("must be 64 hexadecimal digits".to_owned());
    }
    for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let pair = str::from_utf8(pair).map_err(|error| error.to_string())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|error| error.to_string())?;
    }
    let digest = Digest(digest);
    // `echo -n "$TOKEN" | sha256sum` with an unset variable would open the API to an empty token.
    if ["", "\n"].iter().any(|nothing| Digest::of(nothing) == digest) {
        return Err("is the SHA-256 of nothing".to_owned());
    }
    Ok(digest)
}

fn from_file(path: &Path) -> Result<Digest, String> {
    let text = read_text(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    if !token.bytes().all(|c| c.is_ascii_graphic()) {
        return Err(format!("{} must hold one token without spaces, of ASCII characters", path.display()));
    }
    if token.len() < SHORTEST {
        return Err(format!("{} must hold a token of at least {SHORTEST} characters, got {}", path.display(), token.len()));
    }
    Ok(Digest::of(token))
}
