//! The table of tenants: sort keys and filter. Order and selection are every table's (`table`).

use std::cmp::Ordering;

use infer_api::admin::TenantRow;

use super::table::{Row, SortKey, Table};
use super::text::Filter;

/// Fields of a tenant that a filter can name: its number and its name, as for requests. `tenant` begins both.
pub const FIELDS: [&str; 2] = ["tenant", "tenant_name"];

/// Sort key of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the columns")]
pub enum SortBy {
    /// The host's order: most live requests first.
    #[default]
    Live,
    Name,
    Weight,
    Running,
    Waiting,
    Held,
    Rate,
    TtftP50,
    TtftP99,
    QueueP50,
    QueueP99,
    Requests,
    Refused,
    Failed,
    Prompt,
    Generated,
}

impl SortKey for SortBy {
    type Row = TenantRow;

    const ALL: &'static [Self] = &[
        Self::Live,
        Self::Name,
        Self::Weight,
        Self::Running,
        Self::Waiting,
        Self::Held,
        Self::Rate,
        Self::TtftP50,
        Self::TtftP99,
        Self::QueueP50,
        Self::QueueP99,
        Self::Requests,
        Self::Refused,
        Self::Failed,
        Self::Prompt,
        Self::Generated,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Name => "name",
            Self::Weight => "weight",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Rate => "tok/s",
            Self::TtftP50 => "ttft p50",
            Self::TtftP99 => "ttft p99",
            Self::QueueP50 => "queue p50",
            Self::QueueP99 => "queue p99",
            Self::Requests => "requests",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Prompt => "prompt",
            Self::Generated => "generated",
        }
    }

    fn compare(self, a: &TenantRow, b: &TenantRow) -> Ordering {
        match self {
            Self::Live => Ordering::Equal,
            Self::Name => a.name.cmp(&b.name),
            Self::Weight => a.weight.total_cmp(&b.weight),
            Self::Running => a.running.cmp(&b.running),
            Self::Waiting => a.waiting.cmp(&b.waiting),
            Self::Held => a.held.cmp(&b.held),
            Self::Rate => a.generated_per_second.total_cmp(&b.generated_per_second),
            Self::TtftP50 => a.ttft_p50_ms.total_cmp(&b.ttft_p50_ms),
            Self::TtftP99 => a.ttft_p99_ms.total_cmp(&b.ttft_p99_ms),
            Self::QueueP50 => a.queue_p50_ms.total_cmp(&b.queue_p50_ms),
            Self::QueueP99 => a.queue_p99_ms.total_cmp(&b.queue_p99_ms),
            Self::Requests => a.requests.cmp(&b.requests),
            Self::Refused => a.refused.cmp(&b.refused),
            Self::Failed => a.failed.cmp(&b.failed),
            Self::Prompt => a.prompt_tokens.cmp(&b.prompt_tokens),
            Self::Generated => a.generated_tokens.cmp(&b.generated_tokens),
        }
    }
}

impl Row for TenantRow {
    fn id(&self) -> u64 {
        self.id.into()
    }

    fn is_shown(&self, filter: &Filter) -> bool {
        let id = self.id.to_string();
        filter.matches(FIELDS.into_iter().zip([id.as_str(), self.name.as_str()]))
    }
}

/// Returns the filter that finds the requests of one tenant. A name may also be another tenant's number, or a part of
/// its name.
#[must_use]
pub fn requests_of(row: &TenantRow) -> String {
    format!("tenant_name={}", row.name)
}

/// A field that the filter names and no tenant has.
#[must_use]
pub fn unknown_field(table: &Table<SortBy>) -> Option<&str> {
    table.filter.unknown_field(|name| FIELDS.iter().any(|field| field.starts_with(name)))
}
