//! What a policy logs reaches the host's log under its name, cut and limited.

mod support;

use support::{Guest, Lines, fuel_loader, scheduler, view};
use tracing_subscriber::filter::LevelFilter;

fn logged_by(guest: &Guest) -> String {
    logged_in(1, 1, LevelFilter::TRACE, guest)
}

/// What so many instances of a guest log in so many calls each, one right after another, of the levels that the host
/// shows, until their loader goes.
fn logged_in(instances: u32, calls: u32, shown: LevelFilter, guest: &Guest) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(shown)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let loader = fuel_loader();
        for _ in 0..instances {
            let mut policy = scheduler(&loader, &guest.component()).expect("it loads");
            for _ in 0..calls {
                policy.schedule(&view(support::TRIGGER, 1, 1)).expect("a plan");
            }
        }
    });
    let bytes = lines.0.lock().expect("no panic").clone();
    let text = String::from_utf8(bytes).expect("the host writes UTF-8");
    text.lines().filter(|line| line.contains(" policy: ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_line_carries_the_level_and_the_policy_s_name() {
    let levels = ["DEBUG", "INFO", "WARN", "ERROR"];
    for (level, name) in levels.into_iter().enumerate() {
        let guest =
            Guest::failing_with(&format!("(call $log (i32.const {level}) (i32.const 800) (i32.const 4))"));
        let log = logged_by(&guest);
        assert!(log.contains(name) && log.contains("text") && log.contains("hand-written"), "{log}");
    }
}

#[test]
fn a_flood_of_lines_is_cut_to_the_burst_of_each_call() {
    // 300 lines of 3,000 bytes each.
    let flood = "(loop $on
        (call $log (i32.const 1) (i32.const 1104) (i32.const 3000))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $on (i32.lt_u (local.get $i) (i32.const 300))))";
    let fill = "(memory.fill (i32.const 1104) (i32.const 65) (i32.const 3000))";
    let log =
        logged_in(1, 3, LevelFilter::TRACE, &Guest { start: fill.into(), ..Guest::failing_with(flood) });
    assert_eq!(log.lines().count(), 3 * 20 + 1, "however fast the calls follow each other");
    assert_eq!(log.matches("suppressed=280").count(), 2, "the next call says how many: {log}");
    let last = log.lines().last().expect("there are lines");
    assert!(last.contains("840 lines of its log were left out"), "of all calls: {last}");
    for line in log.lines().take(3 * 20) {
        assert_eq!(line.matches('A').count(), 1_024, "{line}");
    }
}

#[test]
fn all_instances_of_a_policy_share_ten_lines_if_only_warnings_are_shown() {
    // 20 lines in each of 4 calls of 3 instances.
    let flood = "(loop $on
        (call $log (i32.const 2) (i32.const 800) (i32.const 4))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $on (i32.lt_u (local.get $i) (i32.const 20))))";
    let guest = Guest::failing_with(flood);
    let warnings = logged_in(3, 4, LevelFilter::WARN, &guest);
    assert_eq!(warnings.lines().count(), 11, "and one that says so: {warnings}");
    let last = warnings.lines().last().expect("there are lines");
    assert!(last.contains("230 lines of its log were left out") && last.contains("hand-written"), "{last}");
    assert_eq!(logged_in(3, 4, LevelFilter::INFO, &guest).lines().count(), 240);
}

#[test]
fn a_logged_line_can_not_start_another() {
    let guest = Guest {
        text: "\\0a>\\1b>",
        ..Guest::failing_with("(call $log (i32.const 1) (i32.const 800) (i32.const 4))")
    };
    let log = logged_by(&guest);
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains(" >\u{fffd}>"), "{log}");
}
