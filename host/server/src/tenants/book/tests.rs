//! Which tenant a key belongs to, over reloads and restarts.

use super::*;

fn bearer(value: &str) -> HeaderMap {
    [(AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
}

#[test]
fn reload_keeps_numbers_and_usage_and_ignores_a_bad_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |text: String| std::fs::write(file.path(), text).unwrap();
    let key = |name: &str, key: &str| format!("[tenants.{name}]\nkeys = [\"{}\"]\n", KeyDigest::of(key));
    write(key("bob", "b") + &key("alice", "a"));
    let tenants = Tenants::of_file(file.path()).unwrap();
    let bob = tenants.authenticate(&bearer("Bearer b")).unwrap();
    bob.usage.ended(3, 1, 2, false);
    let number = bob.id;
    assert_ne!(number, TenantId(0), "0 is the tenant of requests without a key");

    for (text, part) in [
        ("[tenants.bob]\nkeys = 3\n", ":2: tenants.bob.keys"),
        ("", " has no keys, "),
        ("[tenants.bob]\n", " has no keys, "),
    ] {
        write(text.to_owned());
        let error = tenants.reload().unwrap_err();
        assert!(error.contains(part), "{error}");
        tenants.authenticate(&bearer("bearer a")).unwrap();
    }
    let error = Tenants::of_file(file.path()).unwrap_err();
    assert!(error.contains(&format!("`infer keys new TENANT --file {}`", file.path().display())), "{error}");
    let error = Tenants::of_file(Path::new("/dev/null")).unwrap_err();
    assert!(error.ends_with("; give a file, to which `infer keys new` adds some"), "{error}");

    write(key("carol", "c"));
    tenants.reload().unwrap();
    assert_eq!(tenants.authenticate(&bearer("Bearer b")).unwrap_err().reason(), "invalid_api_key");
    write(key("carol", "c") + &key("bob", "b2"));
    tenants.reload().unwrap();
    let bob = tenants.authenticate(&bearer("Bearer b2")).unwrap();
    assert_eq!((bob.id, bob.usage.snapshot().prompt_tokens), (number, 3));
    assert_eq!(tenants.usage().iter().map(|(_, usage)| usage.requests).sum::<u64>(), 1);
}

#[test]
fn requests_need_a_key_only_if_there_are_any() {
    let open = Tenants::load(Source::Nothing, &Numbering::default()).unwrap();
    assert_eq!(open.authenticate(&HeaderMap::new()).unwrap().name, "default");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("a"))).unwrap();
    let closed = Tenants::of_file(file.path()).unwrap();
    assert!(closed.need_keys());
    assert_eq!(closed.authenticate(&HeaderMap::new()).unwrap_err().reason(), "missing_api_key");
    for odd in ["Bearer", "Bearer ", "Basic x", "Bearer \u{e9}"] {
        assert_eq!(closed.authenticate(&bearer(odd)).unwrap_err().status(), 401, "{odd}");
    }
    for (authorization, plain, expected) in [
        (None, "a", Ok("a")),
        (None, " a ", Ok("a")),
        (None, "", Err("invalid_api_key")),
        (None, "Bearer a", Err("invalid_api_key")),
        (Some("Bearer b"), "a", Ok("a")),
        (Some("Bearer a"), "b", Ok("a")),
        (Some("Bearer b"), "c", Err("invalid_api_key")),
        (Some("a"), "\u{e9}", Err("invalid_api_key")),
    ] {
        let mut headers = authorization.map(bearer).unwrap_or_default();
        headers.insert(PLAIN_KEY, plain.parse().unwrap());
        let found = closed.authenticate(&headers);
        let found = found.as_ref().map(|tenant| tenant.name.as_str()).map_err(ApiError::reason);
        assert_eq!(found, expected, "{authorization:?}, {plain}");
    }
}

#[test]
fn one_key_is_of_the_default_tenant_and_stays_after_a_reload() {
    let config = |api_keys: Option<&Path>, key: &str| Config {
        api_keys: api_keys.map(Path::to_path_buf),
        api_key: Some(key.to_owned()),
        ..Config::default()
    };
    let tenants = Tenants::open(&config(None, "token-abc123")).unwrap();
    assert!(tenants.need_keys() && tenants.key_count() == 1 && !tenants.has_rates());
    for _ in 0..2 {
        let found = tenants.authenticate(&bearer("Bearer token-abc123")).unwrap();
        assert_eq!((found.id, found.name.as_str(), found.max_priority), (TenantId(0), "default", i32::MAX));
        assert_eq!(found.key, None, "the log says nothing of a key that may be short");
        for (headers, reason) in
            [(HeaderMap::new(), "missing_api_key"), (bearer("Bearer token"), "invalid_api_key")]
        {
            assert_eq!(tenants.authenticate(&headers).unwrap_err().reason(), reason);
        }
        tenants.reload().unwrap();
    }
    for secret in ["two words", "caf\u{e9}", &"x".repeat(513)] {
        let error = Tenants::open(&config(None, secret)).unwrap_err().to_string();
        assert!(error.starts_with("INFER_API_KEY: ") && !error.contains(secret), "{error}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("a"))).unwrap();
    let tenants = Tenants::open(&config(Some(file.path()), "b")).unwrap();
    assert_eq!(tenants.authenticate(&bearer("Bearer a")).unwrap().name, "a", "a file replaces the key");
    assert_eq!(tenants.authenticate(&bearer("Bearer b")).unwrap_err().reason(), "invalid_api_key");
}

#[test]
fn keys_of_a_tenant_share_all_but_the_name_that_the_log_has_for_them() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let digests = ["old", "new"].map(KeyDigest::of);
    let [old, new] = digests.map(|digest| format!("\"{digest}\""));
    let table = format!("[tenants.a]\nkeys = [{old}, {new}]\nrequests-per-minute = 1\n");
    std::fs::write(file.path(), table).unwrap();
    let tenants = Tenants::of_file(file.path()).unwrap();
    let found = ["old", "new"].map(|key| tenants.authenticate(&bearer(&format!("Bearer {key}"))).unwrap());
    let [old, new] = &found;
    assert_eq!(found.each_ref().map(|tenant| tenant.key.clone()), digests.map(|digest| Some(digest.short())));
    assert_eq!((old.id, &old.name), (new.id, &new.name));
    assert!(Arc::ptr_eq(&old.usage, &new.usage));
    old.requests.take(infer_core::Micros(0)).unwrap();
    assert!(new.requests.take(infer_core::Micros(0)).is_err(), "the rate is the tenant's");
}

#[test]
fn tenant_is_alone_until_a_reload_brings_another() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let table = |name: &str| format!("[tenants.{name}]\nkeys = [\"{}\"]\n", KeyDigest::of(name));
    std::fs::write(file.path(), table("a")).unwrap();
    let tenants = Tenants::of_file(file.path()).unwrap();
    let holder = || tenants.authenticate(&bearer("Bearer a")).unwrap().holder();
    let before = holder();
    std::fs::write(file.path(), table("a") + &table("b")).unwrap();
    tenants.reload().unwrap();
    let after = holder();
    assert_eq!((before.alone, after.alone, before.tenant), (true, false, after.tenant));
}

fn file_of(tenants: impl IntoIterator<Item = String>) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let table = |name: String| format!("[tenants.{name}]\nkeys = [\"{}\"]\n", KeyDigest::of(&name));
    std::fs::write(file.path(), tenants.into_iter().map(table).collect::<String>()).unwrap();
    file
}

fn after(earlier: &Numbering, tenants: &[&str]) -> Tenants {
    let file = file_of(tenants.iter().map(ToString::to_string));
    let config = Config { api_keys: Some(file.path().to_path_buf()), ..Config::default() };
    Tenants::open_after(&config, earlier).unwrap()
}

#[test]
fn numbers_outlive_a_host_however_its_file_changes_and_none_is_given_twice() {
    let id = |tenants: &Tenants, name: &str| tenants.current(name).map(|id| id.0);
    let first = after(&Numbering::default(), &["alice", "bob", "carol"]);
    assert_eq!(first.numbering().next, 4, "0 is the tenant of requests without a key");
    let second = after(&first.numbering(), &["dave", "carol", "alice"]);
    let numbers = ["alice", "bob", "carol", "dave"].map(|name| id(&second, name));
    assert_eq!(numbers, [Some(1), None, Some(3), Some(4)]);
    assert_eq!((second.find(TenantId(2)).is_none(), second.label(TenantId(2))), (true, "other".to_owned()));
    let shown: Vec<String> = second.usage().into_iter().map(|(name, _)| name).collect();
    assert_eq!(shown, ["default", "alice", "carol", "dave"], "those that may use the host");
    let third = after(&second.numbering(), &["bob"]);
    assert_eq!(id(&third, "bob"), Some(2));
}

#[test]
fn tenants_that_are_gone_make_room_for_new_ones() {
    let names = |from: usize, to: usize| (from..to).map(|nth| (nth as u32, format!("t{nth}")));
    let mut earlier = Numbering { names: names(1, MAX_NAMES).collect(), next: MAX_NAMES as u32 };
    earlier.names.insert(0, "default".to_owned());
    let tenants = after(&earlier, &["t1", "t2", "new", "newer"]);
    let numbers = ["t1", "new", "newer"].map(|name| tenants.current(name).map(|id| id.0));
    assert_eq!(numbers, [Some(1), Some(MAX_NAMES as u32), Some(MAX_NAMES as u32 + 1)]);
    let now = tenants.numbering();
    assert_eq!((now.names.len(), now.next), (MAX_NAMES, MAX_NAMES as u32 + 2));
    assert!([3, 4].iter().all(|gone| !now.names.contains_key(gone)) && now.names.contains_key(&5));
}

#[test]
fn usage_lists_a_bounded_number_of_tenants() {
    let key = |n: usize| KeyDigest::of(&n.to_string());
    let text: String = (0..200).map(|n| format!("[tenants.t{n}]\nkeys = [\"{}\"]\n", key(n))).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let tenants = Tenants::of_file(file.path()).unwrap();
    let usage = tenants.usage();
    assert_eq!((usage.len(), usage.last().unwrap().0.as_str()), (MAX_LABELS + 1, "other"));
    for (id, label) in [(0, "default"), (127, "t126"), (128, "other"), (5_000, "other")] {
        assert_eq!(tenants.label(TenantId(id)), label);
    }
    assert_eq!(tenants.find(TenantId(128)).unwrap().0, "t127");
}
