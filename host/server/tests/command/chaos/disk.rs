//! Full disks and devices, and folders that are missing.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use crate::commands::KEPT;
use crate::process::{COMPLETION, Home, Host, complaint};

#[test]
fn full_disk_is_named_and_leaves_nothing_behind() {
    let home = Home::new();
    // Every write to a file fails, as if no byte were free.
    let full = "ulimit -f 0";
    home.fails(1, full, &[], &["admin token", "INFER_ADMIN_TOKEN"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "no partial token is left");
    // With a given token it needs no file; compiled policies are not cached, because none fits into 64 KiB. A
    // limit of zero would also prevent the memory images of instances, which count as files.
    let crowded = "ulimit -f 128; export INFER_ADMIN_TOKEN=0123456789abcdef";
    let host = Host::start(home.serve(crowded, &[]));
    host.serves();
    host.ends();
    assert_eq!(home.left("cache"), Vec::<PathBuf>::new(), "no partial compiled policy is left");
    let host = Host::start(home.serve("", &[]));
    host.serves();
    host.ends();
}

#[test]
fn second_host_with_a_cache_file_warns() {
    let home = Home::new();
    let keeps = ["--cache-file", "a.cache"];
    let warns = || {
        Host::start(home.serve(&format!("{KEPT}; exec 2>log.txt"), &keeps)).ends();
        let log = fs::read_to_string(home.path("log.txt")).unwrap();
        log.contains("another host uses a.cache now")
    };
    assert!(!warns());
    let first = Host::start(home.serve(KEPT, &keeps));
    assert!(warns());
    first.ends();
    assert!(!warns());
    assert!(!home.path("a.cache.lock").exists());
}

#[test]
fn cache_that_is_larger_than_files_may_be_leaves_the_file_as_it_was() {
    let home = Home::new();
    let keeps = ["--cache-file", "a.cache"];
    let host = Host::start(home.serve(KEPT, &keeps));
    // A dozen blocks, which are more than 128 KiB.
    let long = COMPLETION.replace("\"max_tokens\": 5", "\"max_tokens\": 200");
    host.completes(&long);
    host.ends();
    let saved = fs::read(home.path("a.cache")).unwrap();
    assert!(saved.len() > 128 << 10, "{}", saved.len());

    let host = Host::start(home.serve(&format!("{KEPT}; exec 2>log.txt; ulimit -f 128"), &keeps));
    host.completes(&long);
    host.ends();
    let log = fs::read_to_string(home.path("log.txt")).unwrap();
    assert!(log.contains("the prefix cache is not saved: "), "{log}");
    assert!(fs::read(home.path("a.cache")).unwrap() == saved, "{log}");
    assert!(!home.path("a.cache.partial").exists());
}

#[test]
fn second_level_that_a_disk_has_no_room_for_is_told_and_costs_no_answer() {
    let home = Home::new();
    // Forty blocks of 20 KiB, of which a file of at most 128 KiB holds six.
    let small = ["--kv-memory", "800KiB", "--max-seq-len", "400"];
    let second = ["--kv-offloading-size", "16MiB", "--kv-offloading-dir", "."];
    let limited = format!("{KEPT}; exec 2>log.txt; ulimit -f 128");
    let host = Host::start(home.serve(&limited, &[small, second].concat()));
    for about in ["First", "Second", "Third", "Fourth", "Fifth", "First"] {
        let sentence = |nth| format!("{about} {nth} is a prefix that many requests share. ");
        let prompt: String = (0..20).map(sentence).collect();
        let answer = host.completes(&COMPLETION.replace("What is a block?", &prompt));
        assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");
    }
    let mut metrics = String::new();
    host.send("GET /metrics", "", "").read_to_string(&mut metrics).unwrap();
    for line in ["infer_kv_offload_failed 1", "infer_kv_offload_blocks 0", "infer_kv_offload_blocks_used 0"] {
        assert!(metrics.contains(&format!("\n{line}.0\n")), "{line}: {metrics}");
    }
    host.ends();
    let log = fs::read_to_string(home.path("log.txt")).unwrap();
    let told = "the second level of the prefix cache failed and is not used any more: --kv-offloading-dir: can't write";
    assert_eq!(log.matches(told).count(), 1, "{log}");
}

#[test]
fn full_output_device_ends_a_command_with_an_error() {
    let home = Home::new();
    for arguments in [&["sim", "run", "--requests", "20", "--scheduler", "builtin"][..], &["policy", "list"]]
    {
        let output = home.command("exec >/dev/full", arguments).output().unwrap();
        complaint(&output);
    }
    let generate = ["generate", "--prompt", "What is a block?", "--max-tokens", "3", "--seed", "1"];
    for json in [&[][..], &["--json"]] {
        let output = home.command("exec >/dev/full", &[&generate[..], json].concat()).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(1) && said.contains("output"), "{said}");
    }
}

#[test]
fn host_without_a_runtime_directory_keeps_its_token_in_the_temporary_one() {
    let home = Home::new();
    let elsewhere =
        "mkdir -p tmp; export TMPDIR=$PWD/tmp XDG_RUNTIME_DIR=/nonexistent/run INFER_ADMIN_TOKEN= INFER_LOG=";
    let host = Host::start(home.serve(elsewhere, &[]));
    assert_eq!(home.left("tmp").len(), 1, "{:?}", home.left("tmp"));
    let list = home.command(elsewhere, &["policy", "list", "--admin", &host.admin]).output().unwrap();
    assert!(list.status.success(), "{}", complaint(&list));
    host.ends();
    assert_eq!(home.left("tmp"), Vec::<PathBuf>::new());
    let nowhere = "export TMPDIR=/nonexistent/tmp XDG_RUNTIME_DIR=/nonexistent/run";
    home.fails(1, nowhere, &[], &["/nonexistent/tmp/infer-", "INFER_ADMIN_TOKEN"]);
}

#[test]
fn private_sockets_of_kv_events_are_removed_and_a_missing_place_is_named() {
    let home = Home::new();
    let publish = ["--kv-events", "tcp://127.0.0.1:0"];
    let elsewhere = "mkdir -p tmp; export TMPDIR=$PWD/tmp";
    let host = Host::start(home.serve(elsewhere, &publish));
    assert_eq!(home.left("tmp").len(), 1, "{:?}", home.left("tmp"));
    host.ends();
    assert_eq!(home.left("tmp"), Vec::<PathBuf>::new());
    home.fails(1, "export TMPDIR=/nonexistent/tmp", &publish, &["--kv-events", "/nonexistent/tmp", "TMPDIR"]);
}
