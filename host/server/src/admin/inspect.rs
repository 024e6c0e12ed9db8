//! Details for operators: the block map, one block, one request, the cache. The engine only copies what is needed;
//! everything else is computed here.

use std::collections::HashMap;

use hyper::StatusCode;
use infer_api::admin::{
    BlockCounts, BlockInfo, BlockMap, CacheReport, PrefixInfo, RequestDetail, SessionInfo, TableBlock,
};
use infer_core::engine::Emptied;
use infer_core::inspect::{BlockCells, BlockColumn, BlockDetail, BlockState, CacheTree, TreeBlock};
use infer_core::{BlockId, Micros, SessionId, TenantId};

use super::operators::{Caller, Role};
use super::order::Order;
use super::requests::unknown;
use super::state::{self, asked};
use crate::app::{App, Served};
use crate::cache_file;
use crate::engine::{RequestReport, Wanted};
use crate::http::{Answer, ApiError, Query, json};

/// Range of a map's cells.
const CELLS: std::ops::RangeInclusive<usize> = 1..=65_536;
/// Range of the prefixes and sessions that a report lists.
const TOP: std::ops::RangeInclusive<usize> = 1..=200;
/// Characters shown of a text.
const TEXT: usize = 512;

/// `GET /admin/blocks/map`.
pub async fn map(app: &App, query: &Query) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let by = query.get("by").unwrap_or("state").to_owned();
    let column = match by.as_str() {
        "state" => BlockColumn::None,
        "references" => BlockColumn::References,
        "tenant" => BlockColumn::Tenant,
        "age" => BlockColumn::AgeSeconds,
        other => {
            let message = format!("`{other}` is not one of state, references, tenant, age");
            return Err(ApiError::invalid("by", message));
        }
    };
    let cells = number(query, "cells", 1_024, CELLS)?;
    let last = served.total_blocks as usize - 1;
    let from = number(query, "from", 0, 0..=last)?;
    let count = number(query, "count", served.total_blocks as usize, 1..=u32::MAX as usize)?;
    let places = from..from.saturating_add(count);
    let look = move |engine: &infer_core::Engine, now| engine.block_cells(places, column, now);
    let blocks = asked(app, served.engine.inspect(look)).await?;
    let map = fold(&blocks, column, cells);
    Ok(json(StatusCode::OK, &BlockMap { block_size: served.block_size, from: from as u32, by, ..map }))
}

fn fold(blocks: &BlockCells, column: BlockColumn, cells: usize) -> BlockMap {
    let total = blocks.states.len();
    let per_cell = total.div_ceil(cells).max(1);
    let mut map = BlockMap { total: total as u32, per_cell: per_cell as u32, ..BlockMap::default() };
    map.states.reserve(total.div_ceil(per_cell));
    for (states, values) in blocks.states.chunks(per_cell).zip(blocks.values.chunks(per_cell)) {
        let counts = count(states);
        map.states.push(majority(&counts));
        if column != BlockColumn::None {
            map.values.push(cell_value(column, states, values));
        }
        map.counts.free += counts.free;
        map.counts.cached += counts.cached;
        map.counts.kept += counts.kept;
        map.counts.used += counts.used;
        map.counts.shared += counts.shared;
    }
    map
}

fn count(states: &[BlockState]) -> BlockCounts {
    let mut counts = BlockCounts::default();
    for state in states {
        *match state {
            BlockState::Free => &mut counts.free,
            BlockState::Cached => &mut counts.cached,
            BlockState::Kept => &mut counts.kept,
            BlockState::Used => &mut counts.used,
            BlockState::Shared => &mut counts.shared,
        } += 1;
    }
    counts
}

/// Returns the most frequent state of a cell's blocks; of equally frequent ones the busier.
fn majority(c: &BlockCounts) -> char {
    let all = [(c.free, 'f'), (c.cached, 'c'), (c.kept, 'k'), (c.used, 'u'), (c.shared, 's')];
    all.into_iter().max_by_key(|&(count, _)| count).map_or('f', |(_, letter)| letter)
}

fn cell_value(column: BlockColumn, states: &[BlockState], values: &[u32]) -> u32 {
    let busy = states.iter().zip(values).filter(|&(&state, _)| state != BlockState::Free).map(|(_, &v)| v);
    match column {
        BlockColumn::None => 0,
        BlockColumn::References => busy.max().unwrap_or(0),
        BlockColumn::AgeSeconds => busy.min().unwrap_or(0),
        BlockColumn::Tenant => {
            let mut tenants: Vec<u32> = busy.collect();
            tenants.sort_unstable();
            let runs = tenants.chunk_by(|a, b| a == b);
            runs.max_by_key(|run| run.len()).map_or(0, |run| run[0])
        }
    }
}

/// `GET /admin/blocks/{id}`.
pub async fn block(app: &App, caller: &Caller, id: &str) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let unknown = || {
        let shown: String = id.chars().take(32).collect();
        let last = served.total_blocks - 1;
        ApiError::not_found(format!("no block `{shown}`; the pool has blocks 0 to {last}"))
    };
    let wanted = BlockId(id.parse().map_err(|_| unknown())?);
    let look = move |engine: &infer_core::Engine, now| (engine.block_detail(wanted), now);
    let (detail, now) = asked(app, served.engine.inspect(look)).await?;
    let detail = detail.ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &block_info(Texts { app, served, caller }, detail, now)))
}

fn block_info(texts: Texts<'_>, detail: BlockDetail, now: Micros) -> BlockInfo {
    let free = detail.state == BlockState::Free;
    BlockInfo {
        id: detail.id.0,
        state: match detail.state {
            BlockState::Free => "free",
            BlockState::Cached => "cached",
            BlockState::Kept => "kept",
            BlockState::Used => "used",
            BlockState::Shared => "shared",
        }
        .to_owned(),
        references: detail.references,
        holders: detail.holders.iter().map(|id| id.0).collect(),
        kept_prompts: detail.kept_prompts,
        depth: detail.depth,
        parent: detail.parent.map(|id| id.0),
        hash: detail.hash.map(hex),
        tenant: detail.tenant.0,
        age_ms: if free { 0 } else { ms_since(now, detail.last_used) },
        expires_ms: detail.expires.map(|at| ms_since(at, now)),
        uses: detail.uses,
        text: texts.of(&detail.prefix),
    }
}

/// `GET /admin/requests/{id}`: the engine's id, or an `x-request-id`.
pub async fn request(app: &App, id: &str) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let found = asked(app, served.engine.detail(Wanted::of(id))).await?;
    let found = found.ok_or_else(|| unknown(id))?;
    let RequestReport { row, detail, meta, at } = *found;
    let place = |&(block, references, indexed): &(BlockId, u32, bool)| TableBlock {
        block: block.0,
        references,
        indexed,
    };
    let due = |at: Micros| (at.0 as i64 - row.arrived.0 as i64) / 1_000;
    let detail = RequestDetail {
        table: detail.table.iter().map(place).collect(),
        max_blocks: detail.max_blocks,
        expected_tokens: detail.expected_tokens,
        reusable_tokens: detail.reusable_tokens,
        pending_tokens: detail.pending_tokens,
        deadline_ms: (detail.deadline != Micros::NEVER).then(|| due(detail.deadline)),
        overtaken: detail.overtaken,
        row: state::request_row(&row, &meta, at),
    };
    Ok(json(StatusCode::OK, &detail))
}

/// `DELETE /admin/cache`: drops what no request uses, and the file of `--cache-file`.
pub async fn empty_cache(app: &App, caller: &Caller) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let order = Order::of(caller, "empty the cache");
    let removed = cache_file::remove(&app.config).await;
    let (Emptied { cached, offloaded }, in_use) = order.done(app, served.engine.empty_cache()).await?;
    let Caller { operator, peer } = caller;
    let dropped = cached;
    tracing::info!(operator = operator.name, %peer, dropped, offloaded, in_use, "an operator emptied the cache");
    removed.map_err(|error| {
        let message = format!("the cache is empty, but the file of --cache-file can't be removed: {error}");
        ApiError::internal("cache_file", message)
    })?;
    let emptied = serde_json::json!({
        "dropped_blocks": cached,
        "dropped_offloaded_blocks": offloaded,
        "blocks_in_use": in_use,
    });
    Ok(json(StatusCode::OK, &emptied))
}

/// `GET /admin/cache`.
pub async fn cache(app: &App, caller: &Caller, query: &Query) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let top = number(query, "top", 20, TOP)?;
    let (tree, now) = asked(app, served.engine.inspect(|engine, now| (engine.cache_tree(), now))).await?;
    let mut report = CacheReport {
        enabled: tree.enabled,
        blocks: tree.blocks.len() as u32,
        sessions_remembered: tree.sessions,
        kept_prompts: tree.kept_prompts,
        kept_prompts_limit: app.config.prompt_cache_entries,
        ..CacheReport::default()
    };
    let live = state::report(app, served).await?.metas;
    let named = live.iter().map(|meta| &meta.session).filter(|name| !name.is_empty());
    let names: HashMap<_, _> = named.map(|name| (served.key_of("session", name), name.clone())).collect();
    (report.sessions, report.sessions_total) = sessions(&tree, now, top, &names);
    let (roots, total) = prefixes(&tree, now, top);
    report.prefixes_total = total;
    report.prefixes = roots;
    let blocks: Vec<BlockId> = report.prefixes.iter().map(|prefix| BlockId(prefix.block)).collect();
    let hashes: HashMap<BlockId, _> = tree.blocks.iter().map(|block| (block.id, block.hash)).collect();
    let look = move |engine: &infer_core::Engine, _| -> Vec<Option<BlockDetail>> {
        blocks.into_iter().map(|id| engine.block_detail(id)).collect()
    };
    let details = asked(app, served.engine.inspect(look)).await?;
    let texts = Texts { app, served, caller };
    for (prefix, detail) in report.prefixes.iter_mut().zip(details) {
        prefix.shared_tokens *= served.block_size;
        // The block may hold another prefix now.
        let hash = hashes.get(&BlockId(prefix.block)).copied().flatten();
        let Some(detail) = detail.filter(|detail| detail.hash == hash) else { continue };
        prefix.hash = detail.hash.map(hex).unwrap_or_default();
        // The text before the block is listed with an earlier prefix.
        let own = detail.prefix.len().saturating_sub(served.block_size as usize);
        prefix.text = texts.of(&detail.prefix[own..]);
    }
    Ok(json(StatusCode::OK, &report))
}

/// Returns the top prefixes and the number of all. A prefix is a run of blocks without a branch, named by its first
/// block; its sums include everything behind it.
fn prefixes(tree: &CacheTree, now: Micros, top: usize) -> (Vec<PrefixInfo>, u32) {
    let blocks = &tree.blocks;
    let places: HashMap<BlockId, usize> = blocks.iter().enumerate().map(|(at, b)| (b.id, at)).collect();
    let parents: Vec<Option<usize>> =
        blocks.iter().map(|block| block.parent.and_then(|id| places.get(&id).copied())).collect();
    let mut children = vec![0_u32; blocks.len()];
    for &parent in parents.iter().flatten() {
        children[parent] += 1;
    }
    // From the leaves up: a block is added to its parent once all its children were added to it.
    let own = |block: &TreeBlock| (1, u32::from(block.references > 0), ms_since(now, block.last_used));
    let mut sums: Vec<(u32, u32, u64)> = blocks.iter().map(own).collect();
    let mut open = children.clone();
    let mut summed: Vec<usize> = (0..blocks.len()).filter(|&at| open[at] == 0).collect();
    let mut ends: Vec<usize> = (0..blocks.len()).collect();
    while let Some(at) = summed.pop() {
        let Some(parent) = parents[at] else { continue };
        let (count, used, age) = sums[at];
        let sum = &mut sums[parent];
        *sum = (sum.0 + count, sum.1 + used, sum.2.min(age));
        if children[parent] == 1 {
            ends[parent] = ends[at];
        }
        open[parent] -= 1;
        if open[parent] == 0 {
            summed.push(parent);
        }
    }
    let begins = |at: &usize| parents[*at].is_none_or(|parent| children[parent] != 1);
    let mut heads: Vec<usize> = (0..blocks.len()).filter(begins).collect();
    let total = heads.len() as u32;
    heads.sort_by_key(|&at| {
        let block = &blocks[at];
        (std::cmp::Reverse((block.uses, block.references, sums[at].0)), block.id)
    });
    heads.truncate(top);
    let info = |at: usize| PrefixInfo {
        block: blocks[at].id.0,
        tenant: blocks[at].tenant.0,
        blocks: sums[at].0,
        used: sums[at].1,
        shared_tokens: blocks[ends[at]].depth + 1,
        references: blocks[at].references,
        uses: blocks[at].uses,
        age_ms: sums[at].2,
        ..PrefixInfo::default()
    };
    (heads.into_iter().map(info).collect(), total)
}

/// Returns the top sessions and the number of all. `names` are those of live requests.
fn sessions(
    tree: &CacheTree,
    now: Micros,
    top: usize,
    names: &HashMap<u64, String>,
) -> (Vec<SessionInfo>, u32) {
    let mut all: HashMap<(TenantId, SessionId), SessionInfo> = HashMap::new();
    for block in tree.blocks.iter().filter(|block| block.session != SessionId(0)) {
        let session = all.entry((block.tenant, block.session)).or_insert_with(|| SessionInfo {
            tenant: block.tenant.0,
            age_ms: u64::MAX,
            ..SessionInfo::default()
        });
        session.blocks += 1;
        session.used += u32::from(block.references > 0);
        session.age_ms = session.age_ms.min(ms_since(now, block.last_used));
    }
    let total = all.len() as u32;
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|((tenant, id), session)| {
        (std::cmp::Reverse(session.blocks), session.age_ms, *tenant, *id)
    });
    all.truncate(top);
    let named = |((_, id), session): ((TenantId, SessionId), SessionInfo)| SessionInfo {
        session: names.get(&id.0).cloned().unwrap_or_else(|| hex(id.0)),
        ..session
    };
    (all.into_iter().map(named).collect(), total)
}

/// Makes text of tokens, for those who may see it.
#[derive(Clone, Copy)]
struct Texts<'a> {
    app: &'a App,
    served: &'a Served,
    caller: &'a Caller,
}

impl Texts<'_> {
    /// Returns tokens as text if the host shows text, and to this caller; of a long text the end.
    fn of(self, tokens: &[u32]) -> Option<String> {
        let is_shown = self.app.config.show_text && self.caller.operator.role >= Role::Operator;
        if !is_shown || tokens.is_empty() {
            return None;
        }
        let text = self.served.tokenizer.decode(tokens, false).ok()?;
        let skip = text.chars().count().saturating_sub(TEXT);
        Some(text.chars().skip(skip).collect())
    }
}

fn number(
    query: &Query,
    key: &str,
    default: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, ApiError> {
    let Some(text) = query.get(key) else { return Ok(default) };
    text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        ApiError::invalid(key, format!("`{text}` is not a whole number from {least} to {most}"))
    })
}

fn ms_since(later: Micros, earlier: Micros) -> u64 {
    later.since(earlier).0 / 1_000
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
