//! Settings to configuration: the defaults, and the error for each invalid value.

use super::*;

fn parse(pairs: &[(&'static str, &str)]) -> Result<Config, ConfigError> {
    let flags = pairs.iter().map(|&(k, v)| (k, v.to_owned())).collect();
    let empty = tempfile::NamedTempFile::new().unwrap();
    Config::from_settings(&Settings::gather(&flags, &Environment::default(), Some(empty.path())).unwrap())
}

#[test]
fn defaults_of_the_help_text_are_those_of_the_code() {
    let stated = SETTINGS.iter().filter(|setting| !setting.worded);
    let stated: Vec<_> = stated.map(|setting| (setting.key, setting.default)).collect();
    let mut parsed = parse(&stated).unwrap();
    assert!(parsed.admission_chosen);
    parsed.admission_chosen = false;
    assert_eq!(format!("{parsed:#?}"), format!("{:#?}", Config::default()));
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let config = Config::default();
    assert_eq!((config.model.as_str(), config.port, config.admin_port), ("demo", 8000, 8001));
    assert_eq!((config.max_batch_size, config.max_batch_tokens, config.prefill_chunk), (32, None, 512));
    assert_eq!((config.step_tokens(true), config.step_tokens(false)), (2_048, 64));
    let wide = parse(&[("max-batch-size", "4000")]).unwrap();
    assert_eq!(
        (wide.step_tokens(true), wide.step_tokens(false)),
        (8_000, 8_000),
        "decoding alone never fills a step"
    );
    assert_eq!(parse(&[("max-batch-tokens", "300")]).unwrap().step_tokens(false), 300);
    for (flags, samples) in [
        (&[][..], 32),
        (&[("speculate", "2")], 96),
        (&[("speculate", "7")], 128),
        (&[("speculate", "7"), ("max-batch-size", "4")], 32),
        (&[("speculate", "7"), ("max-batch-tokens", "100")], 100),
        (&[("speculate", "7"), ("max-batch-size", "400")], 400),
    ] {
        assert_eq!(parse(flags).unwrap().step_samples(), samples, "{flags:?}");
    }
    assert_eq!((config.max_waiting_requests, config.block_size), (1_000, 16));
    assert_eq!((config.prompt_cache_entries, config.prompt_cache_ttl.as_secs()), (100, 300));
    assert_eq!(config.max_body_bytes, 8 << 20);
    assert!(config.prefix_caching);
    assert!(config.served_model_names.is_empty() && config.lora.is_empty());
    let adapters = parse(&[("lora", "a=./x, b = org/y=z")]).unwrap().lora;
    let adapters: Vec<_> = adapters.iter().map(|adapter| (&*adapter.name, &*adapter.place)).collect();
    assert_eq!(adapters, [("a", "./x"), ("b", "org/y=z")]);
    assert!(parse(&[("lora", "")]).unwrap().lora.is_empty());
    for (flags, most) in [
        (&[][..], 0),
        (&[("lora", "a=./x,b=./y")][..], 2),
        (&[("max-adapters", "3")], 3),
        (&[("max-adapters", "3"), ("lora", "a=./x,b=./y")], 3),
    ] {
        assert_eq!(parse(flags).unwrap().most_adapters(), most, "{flags:?}");
    }
    assert_eq!(parse(&[("served-model-name", "a, b/c")]).unwrap().served_model_names, ["a", "b/c"]);
}

#[test]
fn a_second_level_that_a_file_has_is_turned_off_by_flags() {
    let given = |flags: &[(&'static str, &str)]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "kv-offloading-size = '1GiB'\nkv-offloading-dir = '/tmp'\n").unwrap();
        let flags = flags.iter().map(|&(key, value)| (key, value.to_owned())).collect();
        let settings = Settings::gather(&flags, &Environment::default(), Some(file.path())).unwrap();
        let config = Config::from_settings(&settings).unwrap();
        (config.kv_offloading_bytes, config.kv_offloading_dir)
    };
    let dir = Some(std::path::PathBuf::from("/tmp"));
    assert_eq!(given(&[]), (Some(1 << 30), dir.clone()));
    assert_eq!(given(&[("kv-offloading-size", "0")]), (None, dir));
    assert_eq!(given(&[("kv-offloading-dir", "")]), (Some(1 << 30), None));
}

#[test]
fn names_of_models_have_a_bound() {
    for bytes in [256, 257] {
        let name = "x".repeat(bytes);
        for (key, value) in [("served-model-name", name.clone()), ("lora", format!("{name}=./x"))] {
            let parsed = parse(&[(key, value.as_str())]).map(drop).map_err(|error| error.to_string());
            assert_eq!(parsed.is_ok(), bytes == 256, "{key}: {parsed:?}");
            assert!(parsed.err().is_none_or(|error| error.contains("at most 256 bytes")), "{key}");
        }
    }
}

#[test]
fn every_error_names_the_flag_and_what_is_accepted() {
    type Flags = &'static [(&'static str, &'static str)];
    let cases: &[(Flags, &[&str])] = &[
        (&[("port", "70000")], &["--port", "0 to 65535"]),
        (&[("max-batch-size", "0")], &["--max-batch-size", "1 to 4096"]),
        (&[("kv-cache", "ring")], &["--kv-cache", "`paged`", "`contiguous`"]),
        (&[("pooling", "mean")], &["--pooling", "`auto`", "`last`"]),
        (&[("kv-memory", "lots")], &["--kv-memory", "GiB"]),
        (&[("served-model-name", "a,,b")], &["--served-model-name", "empty"]),
        (&[("lora", "./sql")], &["--lora", "`./sql`", "NAME=ADAPTER"]),
        (&[("lora", "a=x,=y")], &["--lora", "`=y`", "NAME=ADAPTER"]),
        (&[("lora", "a\u{7}b=x")], &["--lora", r#""a\u{7}b" has control characters"#]),
        (&[("served-model-name", "a,b\nc")], &["--served-model-name", r#""b\nc" has control characters"#]),
        (&[("lora", "a=./x,1")], &["--lora", "`1`", "no path can have one"]),
        (&[("lora", "a=x,,b=y")], &["--lora", "``", "NAME=ADAPTER"]),
        (
            &[("lora", "a=x, b=y"), ("max-adapters", "1")],
            &["--max-adapters", "1 are fewer than the 2 of --lora"],
        ),
        (&[("lora", "a=x, a=y")], &["--lora", "two adapters", "`a`"]),
        (&[("lora", "a=x"), ("served-model-name", "b,a")], &["--lora", "`a` is a name of the model itself"]),
        (&[("device", "tpu")], &["--device", "`cpu`"]),
        (&[("gpu-memory-utilization", "1.5")], &["--gpu-memory-utilization", "at most 1"]),
        (&[("dtype", "f64")], &["--dtype", "`bf16`", "`f16`"]),
        (&[("speculate", "99")], &["--speculate", "0 to 32"]),
        (&[("quantize", "q5")], &["--quantize", "`q8`", "`q4`"]),
        (&[("kv-offloading-size", "much")], &["--kv-offloading-size", "GiB"]),
        (&[("kv-offloading-dir", "/tmp")], &["--kv-offloading-dir", "--kv-offloading-size"]),
        (&[("cache-file", "")], &["--cache-file", "empty"]),
        (&[("cache-file-size", "much")], &["--cache-file-size", "GiB"]),
        (&[("prefix-caching", "maybe")], &["--prefix-caching", "`on`"]),
        (&[("admin", "8001")], &["--admin", "HOST:PORT"]),
        (&[("port", "5"), ("admin", "127.0.0.1:5")], &["--admin", "own"]),
        (&[("host", "0.0.0.0"), ("port", "5"), ("admin", "127.0.0.1:5")], &["--admin", "port 5 of 0.0.0.0"]),
        (&[("port", "5"), ("admin", "[::]:5")], &["--admin", "port 5 of 127.0.0.1"]),
        (&[("max-batch-tokens", "4")], &["--max-batch-tokens", "at least 32"]),
        (&[("max-body-memory", "1MiB")], &["--max-body-memory", "--max-body-bytes"]),
        (&[("policy-config", "/nonexistent.json")], &["--policy-config", "/nonexistent.json"]),
        (&[("policy-state", "")], &["--policy-state", "empty"]),
        (&[("operators", "")], &["--operators", "empty"]),
        (&[("allowed-origins", "example.org")], &["--allowed-origins", "example.org", "SCHEME://HOST"]),
        (&[("metrics", "private")], &["--metrics", "`public`", "`tenants`", "`admin`"]),
        (&[("policy-deadline", "2s")], &["--policy-deadline", "1ms to 1s"]),
        (&[("policy-memory", "4GiB")], &["--policy-memory", "1MiB to 1GiB"]),
        (&[("policy-strikes", "0")], &["--policy-strikes", "1 to 1000"]),
        (&[("policy-strike-window", "10ms")], &["--policy-strike-window", "1s to 3600s"]),
        (&[("starvation-bound", "0")], &["--starvation-bound", "1ms to 3600s"]),
        (&[("sse-dialect", "x")], &["--sse-dialect", "`named`"]),
        (&[("tls-cert", "c.pem")], &["--tls-cert", "--tls-key"]),
        (&[("idle-timeout", "0")], &["--idle-timeout", "1 ms"]),
        (&[("otlp", "collector:4317")], &["--otlp", if cfg!(feature = "otel") { "http" } else { "otel" }]),
        (&[("kv-events", "5557")], &["--kv-events", "tcp://HOST:PORT"]),
        (&[("kv-events-replay", "tcp://0.0.0.0:5558")], &["--kv-events-replay", "--kv-events"]),
    ];
    for (pairs, parts) in cases {
        let error = parse(pairs).unwrap_err().to_string();
        for part in *parts {
            assert!(error.contains(part), "{pairs:?}: {error}");
        }
    }
}

#[test]
fn planes_may_share_a_port_of_different_addresses() {
    for (host, admin) in [
        ("127.0.0.2", "127.0.0.1:5"),
        ("0.0.0.0", "[::1]:5"),
        ("::1", "0.0.0.0:5"),
        ("box", "127.0.0.1:5"),
        ("box", "localhost:5"),
        ("localhost", "127.0.0.2:5"),
        ("localhost", "127.0.0.1:6"),
    ] {
        assert!(parse(&[("host", host), ("port", "5"), ("admin", admin)]).is_ok(), "{host} and {admin}");
    }
    for host in ["0.0.0.0", "localhost"] {
        assert!(parse(&[("host", host), ("port", "0"), ("admin", "127.0.0.1:0")]).is_ok(), "free ones");
    }
}

#[test]
fn planes_of_one_address_share_no_port_however_it_is_written() {
    for (host, admin) in [
        ("localhost", "127.0.0.1:5"),
        ("127.0.0.1", "LOCALHOST:5"),
        ("localhost", "[::1]:5"),
        ("localhost", "0.0.0.0:5"),
        ("::", "localhost:5"),
        ("::1", "[0:0:0:0:0:0:0:1]:5"),
        ("::ffff:127.0.0.1", "127.0.0.1:5"),
        ("box", "Box:5"),
    ] {
        let error = parse(&[("host", host), ("port", "5"), ("admin", admin)]).unwrap_err().to_string();
        assert!(error.starts_with("--admin: ") && error.contains("(--port)"), "{host} and {admin}: {error}");
    }
}

#[test]
#[cfg(feature = "kv-events")]
fn sockets_of_kv_events_need_ports_of_their_own() {
    let planes = [("port", "5"), ("admin", "127.0.0.1:6")];
    let with = |events, replay: Option<&'static str>| {
        let mut flags = planes.to_vec();
        flags.push(("kv-events", events));
        flags.extend(replay.map(|replay| ("kv-events-replay", replay)));
        parse(&flags).map_err(|error| error.to_string())
    };
    for (events, replay, late, early) in [
        ("tcp://127.0.0.1:5", None, "--kv-events: ", "(--port)"),
        ("tcp://localhost:6", None, "--kv-events: ", "(--admin)"),
        ("tcp://127.0.0.1:7", Some("tcp://*:7"), "--kv-events-replay: ", "(--kv-events)"),
        ("tcp://127.0.0.1:7", Some("tcp://[::]:6"), "--kv-events-replay: ", "(--admin)"),
    ] {
        let error = with(events, replay).unwrap_err();
        assert!(error.starts_with(late) && error.contains(early), "{events} and {replay:?}: {error}");
    }
    for (events, replay) in [
        ("tcp://*:7", Some("tcp://*:8")),
        ("tcp://127.0.0.2:5", Some("tcp://127.0.0.2:6")),
        ("tcp://[::1]:7", Some("tcp://0.0.0.0:7")),
        ("tcp://*:0", Some("tcp://*:0")),
        ("tcp://box:5", None),
    ] {
        assert_eq!(with(events, replay).err(), None, "{events} and {replay:?}");
    }
}
