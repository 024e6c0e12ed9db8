//! The tenants screen: sort, filter, the way to a tenant's requests, hosts that send less.

use infer_api::admin::TenantRow;

use super::*;
use crate::state::keys::Hit;
use crate::state::tenants::SortBy;

/// Returns an app on the tenants screen, with three of five tenants and a request of each.
fn watching() -> App {
    let mut app = app();
    event(&mut app, AdminEvent::Snapshot(Box::new(state())), 0);
    app.on_key(Key::Char('7'), 0);
    app
}

fn state() -> State {
    let tenant = |id, name: &str, weight, ttft_p99_ms| TenantRow {
        id,
        name: name.into(),
        weight,
        ttft_p99_ms,
        running: 1,
        ..TenantRow::default()
    };
    let request =
        |id, tenant: &TenantRow| RequestRow { id, tenant_name: tenant.name.clone(), ..RequestRow::default() };
    let tenants =
        vec![tenant(7, "zeta", 1.0, 20.5), tenant(2, "acme", 0.5, 900.0), tenant(5, "lab-7", 2.0, 0.0)];
    State {
        uptime_ms: 2_000,
        host: HostInfo { run: "first".into(), ..HostInfo::default() },
        requests: (1..).zip(&tenants).map(|(id, tenant)| request(id, tenant)).collect(),
        requests_total: 3,
        tenants,
        tenants_total: 5,
        ..State::default()
    }
}

/// Returns the names in the order of the table.
fn names(app: &App) -> Vec<&str> {
    let rows = app.feed().tenants();
    app.tenants.order().iter().map(|&at| rows[at].name.as_str()).collect()
}

fn shown(app: &App, width: u16) -> String {
    print::screen(app, 0, Rect::new(0, 0, width, 24))
}

#[test]
fn tenants_are_in_the_hosts_order_until_they_are_sorted() {
    let mut app = watching();
    assert_eq!(names(&app), ["zeta", "acme", "lab-7"]);
    assert!(shown(&app, 80).contains(" Tenants (first 3 of 5) ─"), "{}", shown(&app, 80));
    app.on_key(Key::Char('s'), 0);
    assert_eq!(names(&app), ["acme", "lab-7", "zeta"]);
    app.on_key(Key::Char('s'), 0);
    assert_eq!((app.tenants.sort_by, names(&app)), (SortBy::Weight, vec!["acme", "zeta", "lab-7"]));
    app.on_key(Key::Char('S'), 0);
    assert_eq!(names(&app), ["lab-7", "zeta", "acme"]);
    assert!(shown(&app, 80).contains("▼ by weight"), "{}", shown(&app, 80));
    assert_eq!(
        app.requests.table.sort_by,
        crate::state::requests::SortBy::Engine,
        "the requests stay as they were"
    );
}

#[test]
fn the_selection_follows_its_tenant() {
    let mut app = watching();
    app.on_key(Key::Down, 0);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::Copy("acme".into())]);
    let mut state = state();
    state.tenants.swap(0, 1);
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    assert_eq!((names(&app)[0], app.tenants.selected_row()), ("acme", 0));
}

#[test]
fn enter_shows_the_requests_of_the_selected_tenant() {
    let mut app = watching();
    keys(&mut app, &[Key::Down, Key::Enter], 0);
    assert_eq!((app.screen, app.requests.table.filter.text()), (Screen::Requests, "tenant_name=acme"));
    assert_eq!(app.requests.table.order(), [1]);
    assert!(shown(&app, 80).contains("1 match /tenant_name=acme"), "{}", shown(&app, 80));
    keys(&mut app, &[Key::Escape], 0);
    assert_eq!(app.requests.table.order().len(), 3);
}

#[test]
fn enter_leaves_out_tenants_whose_name_or_number_is_alike() {
    let mut app = app();
    let names = ["a", "ab", "A", "3"];
    let tenant = |(id, name): (u32, &&str)| TenantRow { id, name: (*name).into(), ..TenantRow::default() };
    let tenants: Vec<_> = (1..).zip(&names).map(tenant).collect();
    let request = |tenant: &TenantRow| RequestRow {
        id: tenant.id.into(),
        tenant: tenant.id,
        tenant_name: tenant.name.clone(),
        ..RequestRow::default()
    };
    let state = State { requests: tenants.iter().map(request).collect(), tenants, ..state() };
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    for (row, name) in names.into_iter().enumerate() {
        keys(&mut app, &[Key::Char('7'), Key::Home], 0);
        keys(&mut app, &vec![Key::Down; row], 0);
        app.on_key(Key::Enter, 0);
        assert_eq!(app.requests.table.order(), [row], "{name}");
    }
}

#[test]
fn a_second_click_shows_the_requests_as_enter_does() {
    let mut app = watching();
    app.on_hit(Hit::Tenant(2), 0);
    assert_eq!(app.screen, Screen::Tenants);
    app.on_hit(Hit::Tenant(2), 0);
    assert_eq!((app.screen, app.requests.table.filter.text()), (Screen::Requests, "tenant_name=lab-7"));
}

#[test]
fn the_filter_is_the_tenants_own() {
    let mut app = watching();
    keys(&mut app, &typed("/ET"), 0);
    assert_eq!((names(&app), app.requests.table.order().len()), (vec!["zeta"], 3));
    app.on_key(Key::Enter, 0);
    let mut filtered = |line: &str| {
        keys(&mut app, &typed(line), 0);
        app.on_key(Key::Enter, 0);
        shown(&app, 80)
    };
    let by_number = filtered("/tenant:5");
    assert!(by_number.contains("lab-7") && by_number.contains("1 match /tenant:5"), "{by_number}");
    assert!(filtered("/nobody").contains("no tenant matches the filter"));
    assert!(
        filtered("/user:ada").contains("tenants have no field `user`; the fields are tenant, tenant_name")
    );
    keys(&mut app, &[Key::Escape], 0);
    assert_eq!(names(&app).len(), 3);
}

#[test]
fn a_paused_screen_keeps_its_tenants() {
    let mut app = watching();
    app.on_key(Key::Char(' '), 0);
    event(&mut app, AdminEvent::Snapshot(Box::new(State { tenants: Vec::new(), ..state() })), 0);
    assert_eq!(names(&app).len(), 3);
    app.on_key(Key::Char(' '), 0);
    assert_eq!(names(&app).len(), 0);
}

#[test]
fn the_command_shows_the_screen() {
    let mut app = app();
    keys(&mut app, &typed(":tenants"), 0);
    app.on_key(Key::Enter, 0);
    assert_eq!(app.screen, Screen::Tenants);
}

#[test]
fn a_host_without_tenants_is_told_from_one_without_requests() {
    let mut app = watching();
    let mut state = State { tenants: Vec::new(), tenants_total: 0, ..state() };
    event(&mut app, AdminEvent::Snapshot(Box::new(state.clone())), 0);
    assert!(shown(&app, 40).contains("│no requests yet "), "{}", shown(&app, 40));
    state.counters.submitted = 3;
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    let text = shown(&app, 40);
    assert!(text.contains("│this host sends no tenants ") && text.contains("╭ Tenants ─"), "{text}");
    assert_eq!(keys(&mut app, &[Key::Enter, Key::Char('S'), Key::Down], 0), []);
    assert_eq!(app.screen, Screen::Tenants, "there is nothing to enter");
}
