//! The policy in the authors' guide is the one that `infer policy new` writes.

const GUIDE: &str = include_str!("../../../../plugins/README.md");
const TEMPLATE: &str = include_str!("../../../../plugins/templates/scheduler/src/lib.rs");

#[test]
fn guide_walks_through_the_scheduler_template() {
    let shown: Vec<&str> =
        GUIDE.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(shown.len(), 1, "one policy");
    assert!(
        TEMPLATE.contains(shown[0]),
        "the policy in plugins/README.md differs from plugins/templates/scheduler"
    );
}
