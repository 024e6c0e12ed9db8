//! Changes that come too late: the slot, or the policy's record, is another by then.

use std::sync::Arc;

use infer_core::engine::CANARY_WINDOW;
use infer_core::policy::PolicyKind;
use infer_core::{Engine, Micros};
use infer_server::engine::{EngineHandle, NotChanged, Provided, SlotChange, SwapMode};
use infer_server::policies::{self, PolicyManager, PolicySource, SwapOrder};
use serde_json::json;

use super::slot_of;
use crate::common::{Host, config};

const SCHEDULER: PolicyKind = PolicyKind::Scheduler;

/// Lets a call look at its slot, changes the slot, and lets the call go on: as if a fault or a verdict on a canary came
/// in between.
async fn overtaken<T>(engine: &EngineHandle, change: SlotChange, call: impl Future<Output = T>) -> T {
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let look = move |_: &Engine, _| {
        entered.send(()).unwrap();
        let _ = held.recv();
    };
    let mut occupied = std::pin::pin!(engine.inspect(look));
    assert!(futures_util::poll!(occupied.as_mut()).is_pending());
    inside.await.unwrap();
    // While the engine is blocked, its look and the change are queued in this order.
    let mut call = std::pin::pin!(call);
    assert!(futures_util::poll!(call.as_mut()).is_pending());
    let mut changed = std::pin::pin!(engine.change(change, Provided::default(), None));
    assert!(futures_util::poll!(changed.as_mut()).is_pending());
    drop(let_go);
    occupied.await.unwrap();
    changed.await.unwrap().unwrap();
    call.await
}

#[tokio::test]
async fn change_of_a_slot_that_has_just_changed_is_refused() {
    let host = Host::start(config()).await;
    let engine = host.server.engine().clone();
    let manager = PolicyManager::new(policies::loader().unwrap(), engine.clone(), Arc::default());
    let swap = async |name: &str, mode: SwapMode| {
        let source = PolicySource::Name(name.to_owned());
        let order = SwapOrder { source, config: json!({}), mode, force: false, of: None, by: None };
        manager.swap(SCHEDULER, order).await.unwrap();
    };
    let live = async || slot_of(&host, "scheduler").await["name"].clone();
    swap("fair", SwapMode::Now).await;
    swap("srpt", SwapMode::Canary(CANARY_WINDOW)).await;

    // The canary is removed: its predecessor must not be rolled back, too.
    let rollback = manager.rollback(SCHEDULER, None, None);
    let refused = overtaken(&engine, SlotChange::Rollback(SCHEDULER), rollback).await.unwrap_err();
    let message = "the scheduler slot has just changed and runs `fair`; see its history, then retry";
    assert_eq!((refused.check(), refused.to_string()), ("not_there", message.to_owned()));
    assert_eq!(live().await, "fair");

    // The canary is accepted: its promotion does not mean the shadow beside it.
    swap("srpt", SwapMode::Canary(CANARY_WINDOW)).await;
    swap("static-batch", SwapMode::Shadow).await;
    let promote = manager.promote(SCHEDULER, None, None);
    let refused = overtaken(&engine, SlotChange::Promote(SCHEDULER), promote).await.unwrap_err();
    assert_eq!((refused.check(), live().await), ("not_there", json!("srpt")));

    // Without a shadow, nothing is left to promote.
    swap("fair", SwapMode::Canary(CANARY_WINDOW)).await;
    let promote = manager.promote(SCHEDULER, None, None);
    let refused = overtaken(&engine, SlotChange::Promote(SCHEDULER), promote).await.unwrap_err();
    assert_eq!((refused.check(), live().await), ("nothing_to_promote", json!("fair")));
    host.server.shutdown().await;
}

#[tokio::test]
async fn policy_that_fails_on_its_way_into_its_slot_stays_out() {
    let host = Host::start(config()).await;
    let engine = host.server.engine();
    let component = infer_bundle::find("scheduler", "srpt").unwrap().component;
    let policy = policies::loader().unwrap().load(SCHEDULER, component, "{}").unwrap();
    let info = policy.info();
    let provided = Provided { there: None, sound: vec![info.clone()] };
    // As its trial in the same slot might end.
    engine.observer().quarantine().add(SCHEDULER, &info, "clients were worse off", Micros(1));
    let change = engine.change(SlotChange::Swap(policy, SwapMode::Now), provided, None).await.unwrap();
    let Err(NotChanged::Quarantined(entry)) = change else { panic!("it is refused") };
    assert_eq!(entry.reason, "clients were worse off");
    assert_eq!(slot_of(&host, "scheduler").await["name"], "continuous");
    host.server.shutdown().await;
}

#[tokio::test]
async fn shadow_that_is_quarantined_meanwhile_is_not_promoted() {
    let host = Host::start(config()).await;
    let engine = host.server.engine().clone();
    let manager = PolicyManager::new(policies::loader().unwrap(), engine.clone(), Arc::default());
    let source = PolicySource::Name("srpt".to_owned());
    let order =
        SwapOrder { source, config: json!({}), mode: SwapMode::Shadow, force: false, of: None, by: None };
    manager.swap(SCHEDULER, order).await.unwrap();
    let report = engine.report().await.unwrap();
    let shadow = report.snapshot.policies.iter().find_map(|slot| slot.shadow.as_ref()).unwrap();
    engine.observer().quarantine().add(SCHEDULER, &shadow.policy, "it failed elsewhere", Micros(1));
    let refused = manager.promote(SCHEDULER, None, None).await.unwrap_err();
    assert_eq!(refused.check(), "quarantined", "{refused}");
    assert_eq!(slot_of(&host, "scheduler").await["name"], "continuous");
    host.server.shutdown().await;
}
