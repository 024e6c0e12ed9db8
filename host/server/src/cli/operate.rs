//! `infer admin`: what an operator does to a running host, besides its policies.

use std::time::Duration;

use clap::Subcommand;
use infer_api::admin::{RequestRow, State, TenantRow};
use reqwest::Method;
use serde_json::Value;

use super::Failure;
use super::adapters::{self, AdaptersCommand};
use super::admin::{Host, Target, parse, print_json};
use super::table::{aligned, cut, terminal_columns};

/// Time over which a tenant's tokens per second are counted, if nobody has looked before.
const RATE_TIME: Duration = Duration::from_millis(500);
/// Most ids in the line that says what was cancelled.
const NAMED_IDS: usize = 8;

/// Commands to a running host.
#[derive(Subcommand)]
pub enum AdminCommand {
    /// Prints the host's whole state, in JSON
    State(Target),
    /// Lists running and waiting requests
    Requests(Target),
    /// Lists tenants: what each has running and waiting, and how long its requests of the last minute waited
    Tenants(Target),
    /// Cancels a request; its client gets what was generated so far
    Cancel {
        /// Its number in `infer admin requests`, or its x-request-id
        id: String,
        #[command(flatten)]
        target: Target,
    },
    /// Lists LoRA adapters, loads and unloads them
    #[command(subcommand)]
    Adapters(AdaptersCommand),
    /// Fails every waiting request
    ClearQueue(Target),
    /// Drops all cached blocks that no request uses, the prompts kept behind them, the second level, and the file of
    /// --cache-file
    EmptyCache(Target),
    /// Reads API keys, operators, TLS certificate and --policy-config again, as SIGHUP does
    Reload(Target),
    /// Refuses new requests from now on; running ones finish
    Drain(Target),
    /// Takes new requests again after `drain`
    Undrain(Target),
}

/// Runs a command.
pub fn run(command: AdminCommand) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::failed)?.block_on(act(command))
}

async fn act(command: AdminCommand) -> Result<(), Failure> {
    match command {
        AdminCommand::State(target) => print_json(&ask(&target, Method::GET, "/admin/state").await?),
        AdminCommand::Requests(target) => requests(&target).await,
        AdminCommand::Tenants(target) => tenants(&target).await,
        AdminCommand::Cancel { id, target } => {
            if id.contains(['/', '?', '#']) {
                let why = format!("{id} can't be part of a path; give its number in `infer admin requests`");
                return Err(Failure::Usage(why));
            }
            tell(&target, Method::DELETE, &format!("/admin/requests/{id}"), |answer| {
                cancelled(&answer["ids"])
            })
            .await
        }
        AdminCommand::Adapters(command) => adapters::act(command).await,
        AdminCommand::ClearQueue(target) => {
            tell(&target, Method::DELETE, "/admin/queue", |answer| {
                format!("failed {} waiting requests", answer["cleared"])
            })
            .await
        }
        AdminCommand::EmptyCache(target) => tell(&target, Method::DELETE, "/admin/cache", emptied).await,
        AdminCommand::Reload(target) => reload(&target).await,
        AdminCommand::Drain(target) => {
            tell(&target, Method::POST, "/admin/drain", |answer| {
                format!("the host refuses new requests; {} are live", answer["live_requests"])
            })
            .await
        }
        AdminCommand::Undrain(target) => {
            tell(&target, Method::DELETE, "/admin/drain", |_| "the host takes new requests".to_owned()).await
        }
    }
}

/// Names what was cancelled: a request may have hundreds of sequences.
fn cancelled(ids: &Value) -> String {
    let ids = ids.as_array().map_or(&[][..], Vec::as_slice);
    let (named, more) = ids.split_at(ids.len().min(NAMED_IDS));
    let named: Vec<String> = named.iter().map(Value::to_string).collect();
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("cancelled {}{more}", named.join(", "))
}

async fn ask(target: &Target, method: Method, path: &str) -> Result<Value, Failure> {
    Host::of(&target.admin)?.ask(method, path, None).await
}

/// Sends a request and prints the response, or what `told` makes of it.
async fn tell(
    target: &Target,
    method: Method,
    path: &str,
    told: impl FnOnce(&Value) -> String,
) -> Result<(), Failure> {
    let answer = ask(target, method, path).await?;
    if target.json {
        return print_json(&answer);
    }
    println!("{}", told(&answer));
    Ok(())
}

async fn reload(target: &Target) -> Result<(), Failure> {
    let (answer, all_reloaded) =
        Host::of(&target.admin)?.ask_for_parts(Method::POST, "/admin/reload").await?;
    let outcomes = answer["reloaded"].as_array().into_iter().flatten();
    let (wrong, reloaded): (Vec<_>, Vec<_>) = outcomes.partition(|outcome| outcome["error"].is_string());
    let text = |outcome: &Value, field: &str| outcome[field].as_str().unwrap_or_default().to_owned();
    if target.json {
        print_json(&answer)?;
    } else if reloaded.is_empty() && all_reloaded {
        println!("there is nothing to reload");
    } else {
        let (stay, changed): (Vec<_>, Vec<_>) =
            reloaded.into_iter().partition(|outcome| outcome["stays"] == Value::Bool(true));
        if !changed.is_empty() {
            let names: Vec<String> = changed.iter().map(|outcome| text(outcome, "what")).collect();
            println!("reloaded {}", names.join(", "));
        }
        for outcome in stay {
            println!("{}: {}", text(outcome, "what"), text(outcome, "done"));
        }
    }
    if all_reloaded {
        return Ok(());
    }
    let failed = |outcome: &&Value| {
        let [what, done, error] = ["what", "done", "error"].map(|field| text(outcome, field));
        format!("can't reload {what} ({done}): {error}")
    };
    Err(Failure::Failed(wrong.iter().map(failed).collect::<Vec<_>>().join("\n")))
}

async fn requests(target: &Target) -> Result<(), Failure> {
    let state = ask(target, Method::GET, "/admin/state").await?;
    if target.json {
        return print_json(&state["requests"]);
    }
    let State { requests, requests_total, .. } = parse(state)?;
    if requests.is_empty() {
        println!("no request is live");
        return Ok(());
    }
    let head = ["id", "state", "tenant", "adapter", "prompt", "cached", "generated", "age", "request id"];
    list(head, requests.iter().map(request_row), requests_total);
    Ok(())
}

async fn tenants(target: &Target) -> Result<(), Failure> {
    // The host computes rates between two looks, and this may be the first.
    ask(target, Method::GET, "/admin/state").await?;
    tokio::time::sleep(RATE_TIME).await;
    let state = ask(target, Method::GET, "/admin/state").await?;
    let State { tenants, tenants_total, .. } = parse(state)?;
    if target.json {
        return print_json(&tenants);
    }
    if tenants.is_empty() {
        println!("no tenant has sent a request");
        return Ok(());
    }
    let head = [
        "tenant",
        "weight",
        "running",
        "waiting",
        "held",
        "tok/s",
        "ttft p50",
        "ttft p99",
        "queued p50",
        "queued p99",
        "ended",
        "refused",
        "failed",
        "generated",
    ];
    list(head, tenants.iter().map(tenant_row), tenants_total);
    Ok(())
}

/// Prints a table, and how many of `total` rows it lacks.
pub(super) fn list<const N: usize>(
    head: [&str; N],
    rows: impl ExactSizeIterator<Item = [String; N]>,
    total: u32,
) {
    let left_out = (total as usize).saturating_sub(rows.len());
    let columns = terminal_columns();
    for line in aligned(std::iter::once(head.map(str::to_owned)).chain(rows)) {
        println!("{}", cut(&line, columns));
    }
    if left_out > 0 {
        println!("and {left_out} more");
    }
}

fn tenant_row(tenant: &TenantRow) -> [String; 14] {
    let ms = |ms: f64| if ms > 0.0 { format!("{ms:.1} ms") } else { "-".to_owned() };
    [
        tenant.name.clone(),
        tenant.weight.to_string(),
        tenant.running.to_string(),
        tenant.waiting.to_string(),
        tenant.held.to_string(),
        format!("{:.0}", tenant.generated_per_second),
        ms(tenant.ttft_p50_ms),
        ms(tenant.ttft_p99_ms),
        ms(tenant.queue_p50_ms),
        ms(tenant.queue_p99_ms),
        tenant.requests.to_string(),
        tenant.refused.to_string(),
        tenant.failed.to_string(),
        tenant.generated_tokens.to_string(),
    ]
}

fn request_row(request: &RequestRow) -> [String; 9] {
    [
        request.id.to_string(),
        request.state.clone(),
        request.tenant_name.clone(),
        request.adapter.clone().unwrap_or_else(|| "-".to_owned()),
        request.prompt_tokens.to_string(),
        request.cached_tokens.to_string(),
        format!("{}/{}", request.generated_tokens, request.max_tokens),
        format!("{:.1} s", request.age_ms as f64 / 1e3),
        request.request_id.clone(),
    ]
}

/// Says what emptying the cache dropped.
fn emptied(answer: &Value) -> String {
    let offloaded = match answer["dropped_offloaded_blocks"].as_u64() {
        // Older hosts don't count them.
        None | Some(0) => String::new(),
        Some(blocks) => format!(" and {blocks} of the second level"),
    };
    let (dropped, in_use) = (&answer["dropped_blocks"], &answer["blocks_in_use"]);
    format!("dropped {dropped} cached blocks{offloaded}; {in_use} are in use")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_names_the_adapter_if_there_is_one() {
        let adapted = RequestRow { adapter: Some("sql".to_owned()), ..RequestRow::default() };
        assert_eq!(request_row(&adapted)[3], "sql");
        assert_eq!(request_row(&RequestRow::default())[3], "-");
    }

    #[test]
    fn both_levels_of_an_emptied_cache_are_counted() {
        let one = json!({"dropped_blocks": 127, "blocks_in_use": 0});
        assert_eq!(emptied(&one), "dropped 127 cached blocks; 0 are in use");
        let none = json!({"dropped_blocks": 127, "dropped_offloaded_blocks": 0, "blocks_in_use": 3});
        assert_eq!(emptied(&none), "dropped 127 cached blocks; 3 are in use");
        let both = json!({"dropped_blocks": 127, "dropped_offloaded_blocks": 506, "blocks_in_use": 3});
        assert_eq!(emptied(&both), "dropped 127 cached blocks and 506 of the second level; 3 are in use");
    }

    #[test]
    fn a_line_names_the_first_of_many_cancelled_sequences() {
        assert_eq!(cancelled(&json!([17])), "cancelled 17");
        assert_eq!(cancelled(&json!([17, 18])), "cancelled 17, 18");
        let many: Vec<u64> = (1..=300).collect();
        assert_eq!(cancelled(&json!(many)), "cancelled 1, 2, 3, 4, 5, 6, 7, 8 and 292 more");
    }
}
