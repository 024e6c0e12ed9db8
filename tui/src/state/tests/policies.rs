//! The policies screen: swap, configure, shadow, promote, roll back.

use infer_api::admin::{QuarantineEntry, ShadowInfo};
use serde_json::Value;

use super::*;
use crate::state::log::Level;

#[test]
fn swap_from_the_list_is_confirmed_and_reports_its_pause() {
    let mut app = app();
    let effects = keys(&mut app, &[Key::Char('4'), Key::Char('s')], 0);
    assert_eq!(effects, [Effect::FetchHistory { kind: "scheduler".into() }, Effect::FetchPolicies]);
    app.on_message(Message::Policies(Ok(known())), 0);
    assert_eq!(keys(&mut app, &[Key::Down, Key::Enter], 0), []);
    assert!(
        matches!(&app.dialog, Some(Dialog::Swap(plan)) if plan.order.of.as_deref() == Some("continuous"))
    );
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::Swap(order("static-batch", Mode::Now))]);
    let answer = SwapAnswer {
        from: "continuous".into(),
        to: "static-batch".into(),
        pause_us: 41.25,
        mode: "now".into(),
        ..SwapAnswer::default()
    };
    app.on_message(Message::Swapped { kind: "scheduler".into(), verb: "swapped", result: Ok(answer) }, 0);
    let notice = &app.notice.as_ref().unwrap().text;
    assert!(notice.contains("continuous -> static-batch") && notice.contains("41.2 us"), "{notice}");
    assert!(notice.contains("r rolls back"), "{notice}");
}

#[test]
fn swap_supports_shadow_canary_and_files() {
    let mut app = app();
    keys(&mut app, &[Key::Char('4'), Key::Char('s')], 0);
    app.on_message(Message::Policies(Ok(known())), 0);
    let effects = keys(&mut app, &[Key::Down, Key::Enter, Key::Tab, Key::Tab, Key::Char('y')], 0);
    assert_eq!(effects, [Effect::Swap(order("static-batch", Mode::Canary))]);
    keys(&mut app, &[Key::Char('f')], 0);
    keys(&mut app, &typed("./mine.wasm"), 0);
    let effects = keys(&mut app, &[Key::Enter, Key::Right, Key::Char('y')], 0);
    assert_eq!(effects, [Effect::Swap(order("./mine.wasm", Mode::Shadow))]);
    let last = [Key::Char('s'), Key::End, Key::Enter];
    assert_eq!(keys(&mut app, &last, 0), [Effect::FetchPolicies], "known policies are shown at once");
    assert!(matches!(&app.dialog, Some(Dialog::Path(path)) if path.kind == "scheduler"));
}

#[test]
fn paths_complete_in_the_dialog_and_on_the_command_line() {
    let mut app = app();
    let folder = |folder: &str, names: &[&str]| Message::Folder {
        folder: folder.into(),
        result: Ok(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    keys(&mut app, &[Key::Char('4'), Key::Char('f')], 0);
    keys(&mut app, &typed("./t"), 0);
    assert_eq!(keys(&mut app, &[Key::Tab], 0), [Effect::ListFolder("./".into())]);
    app.on_message(folder("elsewhere/", &["tools/"]), 0);
    app.on_message(folder("./", &["mine.wasm", "target/"]), 0);
    let path = |app: &App| match &app.dialog {
        Some(Dialog::Path(path)) => (path.line.text(), path.options.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(path(&app), ("./target/".to_owned(), Some(vec!["target/".to_owned()])));
    assert_eq!(keys(&mut app, &[Key::Tab], 0), [Effect::ListFolder("./target/".into())]);
    app.on_message(folder("./target/", &["a.wasm", "ab.wasm"]), 0);
    assert_eq!(path(&app).0, "./target/a");
    keys(&mut app, &typed("b"), 0);
    assert_eq!(path(&app).1, None, "typing discards the completions");
    app.on_message(Message::Folder { folder: "./target/".into(), result: Err("it is gone".into()) }, 0);
    assert!(app.notice.as_ref().unwrap().text.contains("it is gone"));
    keys(&mut app, &[Key::Escape], 0);

    keys(&mut app, &typed(":swap scheduler ~/m"), 0);
    assert_eq!(keys(&mut app, &[Key::Tab], 0), [Effect::ListFolder("~/".into())]);
    app.on_message(folder("~/", &["mine.wasm", "music/"]), 0);
    assert!(matches!(&app.prompt, Some(Prompt::Command(line, options))
        if line.text() == "swap scheduler ~/m" && options.len() == 2));
    keys(&mut app, &typed("i"), 0);
    keys(&mut app, &[Key::Tab], 0);
    app.on_message(folder("~/", &["mine.wasm", "music/"]), 0);
    let effects = keys(&mut app, &[Key::Enter, Key::Char('y')], 0);
    assert_eq!(effects, [Effect::Swap(order("~/mine.wasm", Mode::Now))]);
}

#[test]
fn list_members_are_configured_together() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    let schema = known().available[0].config_schema.clone();
    let list = json!([{"name": "a", "config": {"batch_size": 8}}, {"name": "b", "config": {}}]);
    state.policies[1].name = "a+b".into();
    state.policies[1].config_schema = json!({"type": "array", "prefixItems": [schema, schema]});
    state.policies[1].config = list;
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char('4'), Key::Down, Key::Char('e'), Key::Down, Key::Char('5')], 0);
    let effects = keys(&mut app, &[Key::Enter, Key::Char('y')], 0);
    let config =
        json!([{"name": "a", "config": {"batch_size": 8}}, {"name": "b", "config": {"batch_size": 5}}]);
    let [Effect::Swap(given)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((given.kind.as_str(), given.config.as_ref()), ("admission", Some(&config)));
}

#[test]
fn configuration_is_checked_before_it_is_sent() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    state.policies[0].config_schema = known().available[0].config_schema.clone();
    state.policies[0].config = json!({"batch_size": 8});
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char('4'), Key::Char('e'), Key::Backspace, Key::Char('0'), Key::Enter], 0);
    assert!(
        matches!(&app.dialog, Some(Dialog::Edit(editing)) if editing.faults == ["batch_size: must be at least 1, not 0"]),
        "{:?}",
        app.dialog
    );
    let effects = keys(&mut app, &[Key::Backspace, Key::Char('3'), Key::Enter, Key::Char('y')], 0);
    let config = Some(json!({"batch_size": 3}));
    assert_eq!(effects, [Effect::Swap(Order { config, ..order("continuous", Mode::Now) })]);
}

#[test]
fn file_policy_is_not_mistaken_for_the_bundled_policy_of_its_name() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    state.policies[0].config_schema = known().available[0].config_schema.clone();
    state.policies[0].sha256 = "from a file".into();
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    let asked = keys(&mut app, &[Key::Char('4'), Key::Char('e')], 0);
    assert!(asked.contains(&Effect::FetchPolicies), "{asked:?}");
    let again = order("continuous", Mode::Now);
    for (sha256, hidden) in [("from a file", false), ("the host's own", true)] {
        let mut known = known();
        known.available[0].sha256 = sha256.into();
        app.on_message(Message::Policies(Ok(known)), 0);
        assert_eq!(app.shadows_a_bundled_policy(&again), hidden);
    }
    assert!(!app.shadows_a_bundled_policy(&order("static-batch", Mode::Now)), "another name");
}

#[test]
fn shadow_is_promoted_or_stopped_after_confirmation() {
    let mut app = app();
    keys(&mut app, &[Key::Char('4'), Key::Char('p')], 0);
    assert!(app.notice.as_ref().unwrap().text.contains("there is no shadow"));
    let mut state = app.state().unwrap().clone();
    let watching = ShadowInfo { policy: "fair".into(), state: "watching".into(), ..ShadowInfo::default() };
    state.policies[0].shadow = Some(watching);
    let effects = event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    let kind = || "scheduler".to_owned();
    assert_eq!(effects, [Effect::FetchHistory { kind: kind() }], "the history has a new entry");
    let promoted = keys(&mut app, &[Key::Char('p'), Key::Char('y')], 0);
    assert_eq!(promoted, [Effect::Promote { kind: kind(), of: "fair".into() }]);
    assert_eq!(keys(&mut app, &[Key::Char('x'), Key::Char('y')], 0), [Effect::StopShadow { kind: kind() }]);
}

#[test]
fn rollback_needs_a_previous_policy() {
    let mut app = app();
    let effects = keys(&mut app, &[Key::Char('4'), Key::Char('r'), Key::Char('y')], 0);
    assert!(
        effects.contains(&Effect::Rollback { kind: "scheduler".into(), of: "continuous".into() }),
        "{effects:?}"
    );
    keys(&mut app, &[Key::Down, Key::Char('r')], 0);
    assert_eq!(app.dialog, None);
    assert!(app.notice.as_ref().unwrap().text.contains("nothing to roll back"));
}

#[test]
fn changes_name_what_was_seen_with_its_configuration() {
    let mut app = app();
    app.on_message(Message::Policies(Ok(known())), 0);
    let mut state = app.state().unwrap().clone();
    let slot = &mut state.policies[0];
    slot.tag = "continuous@0123456789abcdef".into();
    slot.config_schema = known().available[0].config_schema.clone();
    slot.config = json!({"batch_size": 8});
    let (policy, tag) = ("fair".to_owned(), "fair@fedcba9876543210".to_owned());
    slot.shadow = Some(ShadowInfo { policy, tag, state: "watching".into(), ..ShadowInfo::default() });
    event(&mut app, AdminEvent::Snapshot(Box::new(state.clone())), 0);
    keys(&mut app, &[Key::Char('4')], 0);
    let live = "continuous@0123456789abcdef";
    for (opened, asked, of) in [
        (
            &[Key::Char('s'), Key::Down, Key::Enter][..],
            "Swap scheduler from continuous to static-batch?",
            live,
        ),
        (&[Key::Char('e'), Key::Enter], "Reconfigure continuous (scheduler)?", live),
        (&[Key::Char('r')], "Roll scheduler back from continuous", live),
        (&[Key::Char('p')], "Promote fair from shadow to live", "fair@fedcba9876543210"),
    ] {
        keys(&mut app, opened, 0);
        let shown = print::screen(&app, 0, Rect::new(0, 0, 100, 30));
        assert!(shown.contains(asked), "{shown}");
        assert_eq!(named(&keys(&mut app, &[Key::Char('y')], 0)), of, "{asked}");
    }
    state.policies[0].shadow = None;
    state.policies[0].state = "canary".into();
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    assert_eq!(named(&keys(&mut app, &[Key::Char('p'), Key::Char('y')], 0)), live, "a canary is live");
}

/// What a change is about.
fn named(effects: &[Effect]) -> &str {
    match effects {
        [
            Effect::Swap(Order { of: Some(of), .. })
            | Effect::Rollback { of, .. }
            | Effect::Promote { of, .. },
        ] => of,
        other => panic!("{other:?}"),
    }
}

#[test]
fn configurations_of_one_policy_are_told_apart_by_their_digests() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    state.policies[0].previous = Some("continuous".into());
    state.policies[0].previous_config_sha256 = "0123456789abcdef".into();
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char('4'), Key::Char('r')], 0);
    assert_eq!(
        question(&app),
        "Roll scheduler back to continuous (config 0123456789) with its previous configuration?"
    );
    let answer = SwapAnswer {
        from: "continuous".into(),
        to: "continuous".into(),
        config_sha256: "0123456789abcdef".into(),
        mode: "now".into(),
        ..SwapAnswer::default()
    };
    let swapped = |answer| Message::Swapped { kind: "scheduler".into(), verb: "swapped", result: Ok(answer) };
    app.on_message(swapped(answer.clone()), 0);
    let text = "scheduler swapped: continuous -> continuous (config 0123456789) (r rolls back)";
    assert!(app.notice.as_ref().unwrap().text.starts_with(text), "{:?}", app.notice);
    app.on_message(swapped(SwapAnswer { unchanged: true, ..answer }), 0);
    let text = "scheduler: continuous (config 0123456789) is live already; nothing changed";
    assert_eq!(app.notice.as_ref().unwrap().text, text);
}

#[test]
fn the_log_says_which_state_a_policy_goes_on_with() {
    let mut app = app();
    for state in ["restored", "kept", "cold"] {
        let answer = SwapAnswer { to: "fair".into(), state: state.into(), ..SwapAnswer::default() };
        event(&mut app, AdminEvent::Swap(answer), 0);
        let text = &app.feed().log.last().unwrap().text;
        assert!(text.contains(&format!(", {state} state, ")), "{text}");
    }
}

#[test]
fn the_log_says_why_a_policy_does_not_have_its_predecessors_state() {
    let note = "it refuses its predecessor's state: another version";
    let answer = SwapAnswer {
        to: "fair".into(),
        state: "cold".into(),
        state_note: Some(note.into()),
        ..SwapAnswer::default()
    };
    let mut app = app();
    let says_why = |app: &App| {
        let line = app.feed().log.last().unwrap();
        assert!(line.text.ends_with(note) && line.level == Level::Warning, "{}", line.text);
        line.source
    };
    event(&mut app, AdminEvent::Swap(answer.clone()), 0);
    assert_eq!(says_why(&app), "swap");
    // The host sends no event for a shadow.
    let shadow = SwapAnswer { mode: "shadow".into(), ..answer };
    app.on_message(Message::Swapped { kind: "scheduler".into(), verb: "shadowed", result: Ok(shadow) }, 0);
    assert_eq!(says_why(&app), "console");
}

#[test]
fn a_change_that_would_not_outlive_the_host_is_shown_with_the_reason() {
    let answer = SwapAnswer {
        to: "fair".into(),
        mode: "now".into(),
        not_saved: Some("No space left on device".into()),
        ..SwapAnswer::default()
    };
    let mut app = app();
    app.on_message(Message::Swapped { kind: "scheduler".into(), verb: "swapped", result: Ok(answer) }, 0);
    let notice = app.notice.as_ref().unwrap();
    assert!(notice.text.ends_with("; not saved: No space left on device"), "{}", notice.text);
}

#[test]
fn picker_selection_follows_its_policy_when_the_list_changes() {
    let mut app = app();
    app.policies.known = Some(known());
    keys(&mut app, &[Key::Char('4'), Key::Char('s'), Key::Down], 0);
    let mut more = known();
    more.available
        .insert(0, AvailablePolicy { kind: "scheduler".into(), name: "a".into(), ..Default::default() });
    app.on_message(Message::Policies(Ok(more.clone())), 0);
    app.on_key(Key::Enter, 0);
    assert!(matches!(&app.dialog, Some(Dialog::Swap(plan)) if plan.order.source.text() == "static-batch"));
    keys(&mut app, &[Key::Escape, Key::Char('s'), Key::End], 0);
    more.available.remove(0);
    app.on_message(Message::Policies(Ok(more)), 0);
    app.on_key(Key::Enter, 0);
    assert!(matches!(&app.dialog, Some(Dialog::Path(_))), "the file stays last");
}

#[test]
fn quarantine_applies_to_the_configuration_shown() {
    let mut app = app();
    let mut known = known();
    known.available[2].sha256 = "of static-batch".into();
    let entry = |config| QuarantineEntry {
        kind: "scheduler".into(),
        sha256: "of static-batch".into(),
        config,
        reason: "trap".into(),
        ..QuarantineEntry::default()
    };
    let nine = json!({"batch_size": 9});
    for (failed, none, edited) in [
        (vec![json!({})], true, false),
        (vec![Value::Null], true, false),
        (vec![nine.clone()], false, true),
        (vec![json!({}), nine.clone()], true, true),
        (vec![json!({"batch_size": 8})], false, false),
    ] {
        known.quarantine = failed.iter().cloned().map(entry).collect();
        app.on_message(Message::Policies(Ok(known.clone())), 0);
        for (config, want) in [(None, none), (Some(json!({})), none), (Some(nine.clone()), edited)] {
            let order = Order { config, ..order("static-batch", Mode::Now) };
            assert_eq!(app.quarantined(&order).is_some(), want, "{failed:?}: {order:?}");
        }
        let list = json!([{"name": "continuous", "config": {}}, {"name": "static-batch", "config": nine}]);
        let listed = Order { config: Some(list), ..order("continuous+static-batch", Mode::Now) };
        assert_eq!(app.quarantined(&listed).is_some(), edited, "{failed:?}: a member of a list");
    }
    assert_eq!(
        app.quarantined(&order("./mine.wasm", Mode::Now)),
        None,
        "its digest is unknown to the console"
    );
}

#[test]
fn screens_name_the_quarantined_configuration() {
    let mut app = app();
    let mut known = known();
    known.available[2].sha256 = "of static-batch".into();
    known.quarantine = vec![QuarantineEntry {
        kind: "scheduler".into(),
        sha256: "of static-batch".into(),
        config: json!({"batch_size": 9}),
        reason: "trap".into(),
        ..QuarantineEntry::default()
    }];
    app.on_message(Message::Policies(Ok(known)), 0);
    let screen = |app: &App| print::screen(app, 0, Rect::new(0, 0, 100, 30));
    keys(&mut app, &[Key::Char('4'), Key::Char('s'), Key::Down], 0);
    assert!(screen(&app).contains(r#"quarantined with {"batch_size":9}: trap"#), "{}", screen(&app));
    app.on_key(Key::Enter, 0);
    assert!(
        !screen(&app).contains("Quarantined"),
        "its default configuration is not quarantined: {}",
        screen(&app)
    );
    keys(&mut app, &[Key::Char('e'), Key::Char('9'), Key::Enter], 0);
    assert!(
        screen(&app).contains("Quarantined with this configuration (trap); f swaps it in"),
        "{}",
        screen(&app)
    );
}
