//! No way of showing a configuration shows a secret.

use super::*;

const MARKER: &str = "s3cr3tMARKERs3cr3tMARKERs3cr3tMARKER";

fn assert_hidden(shown: &str) {
    assert!(!shown.contains("MARKER") && !shown.contains("s3cr3t"), "{shown}");
}

#[test]
fn no_secret_in_debug_json_or_sources() {
    let case = Case::new();
    case.file("token", MARKER);
    let digest: String = Digest::of(&MARKER.repeat(2)).0.iter().map(|byte| format!("{byte:02x}")).collect();
    let case = case
        .toml(&format!(
            "[redis]\nurl = \"redis://app:{MARKER}@h:1/2\"\n[[http.tokens]]\nname = \"a\"\nrole = \"read\"\ntoken_file = \"$DIR/token\"\n\
             [[http.tokens]]\nname = \"b\"\nrole = \"read\"\nsha256 = \"{digest}\""
        ))
        .env("PUNCTUAL__REDIS__USERNAME", "user");
    let loaded = case.load().unwrap();
    assert_eq!(loaded.config.redis.password().unwrap().as_deref(), Some(MARKER));
    let json = effective_json(&loaded);
    for shown in [format!("{loaded:?}"), format!("{:#?}", loaded.config), json.to_string(), loaded.config.redis.url.to_string()] {
        assert_hidden(&shown);
        assert!(!shown.contains(&digest) && !shown.contains(&digest[..16]), "{shown}");
    }
    assert_eq!(json["redis"]["url"], "redis://***@h:1/2");
    assert_eq!(json["http"]["tokens"][1]["sha256"], "***");
}

#[test]
fn password_file_beats_the_url_and_loses_one_newline() {
    for (content, password) in [("a+b=/@#%\n", "a+b=/@#%"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a ")] {
        let case = Case::new();
        let path = case.file("password", content);
        let case = case.toml("[redis]\nurl = \"redis://:url@h\"\npassword_file = \"$DIR/password\"");
        let redis = case.config().redis;
        assert_eq!(redis.password().unwrap().as_deref(), Some(password));
        std::fs::write(path, "rotated").unwrap();
        assert_eq!(redis.password().unwrap().as_deref(), Some("rotated"));
    }
}

#[test]
fn no_secret_in_errors() {
    let url = |text: &str| text.replace("PW", MARKER);
    for broken in [
        url("redis://:PW/x@h"),
        url("redis://:PW#@h"),
        url("redis://:PW%@h"),
        url("redis://h:PW"),
        url("PW"),
        url("PW://h"),
        url("redis+cluster://:PW@h"),
    ] {
        let case = Case::new().env("PUNCTUAL__REDIS__URL", &broken);
        assert_hidden(&case.lines().join("\n"));
        assert_hidden(&Config::for_redis(&broken).unwrap_err().to_string());
    }
    let layers = Layers::default().flag("--redis", "redis.url", MARKER);
    let surroundings = Surroundings { env: vec![("PUNCTUAL__REDIS__URL".into(), MARKER.into())], ..Surroundings::default() };
    assert_hidden(&format!("{layers:?} {surroundings:?}"));
    let flag = Case::new().flag("--redis", "redis.url", &url("redis://:PW@h")).lines().join("\n");
    assert!(flag.starts_with("redis.url: must not hold a password") && flag.ends_with("(from flag --redis)"), "{flag}");
    assert_hidden(&flag);
    for broken in [
        url("[redis]\nurl = \"redis://:PW@h"),
        url("[redis]\nurl = redis://:PW@h"),
        url("[redis]\nurl = \"redis://:PW@h\"\nurl = \"redis://:PW@h\""),
        url("[redis]\npassword = \"PW\""),
        url("[redis]\nurl = [\"redis://:PW@h\"]"),
        url("[[http.tokens]]\nname = \"a\"\nrole = \"read\"\ntoken = \"PW\""),
        url("[[http.tokens]]\nname = \"a\"\nrole = \"read\"\nsha256 = \"PW\""),
        url("[http]\ntokens = [\"PW\"]"),
        url("[http]\ntokens = \"PW\""),
    ] {
        assert_hidden(&Case::new().toml(&broken).lines().join("\n"));
    }
    for broken in [MARKER.to_owned(), url("[{ name = \"PW"), url("[\"PW\"]")] {
        assert_hidden(&Case::new().env("PUNCTUAL__HTTP__TOKENS", &broken).lines().join("\n"));
    }
}
