//! The tenants' counters: charged by the views' served tokens, lifted when a tenant comes back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use infer_policy_sdk::{Micros, Sequence, SequenceId, Step, TenantId};

/// What tokens count.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// A prompt token.
    pub input: u32,
    /// An output token.
    pub output: u32,
}

/// All tenants that were ever seen.
#[derive(Clone, Debug)]
pub struct Accounts {
    prices: Prices,
    by_tenant: BTreeMap<TenantId, Account>,
    /// The last tenant that stopped having requests queued; among several at once, the one that was served
    /// most.
    last_to_leave: Option<TenantId>,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    weight_permille: u32,
    /// What it was served so far, in thousandths of a weighted token by its weight.
    counter: u64,
    /// What it was served beyond that, in the same unit times `weight_permille`. Under a large weight a token
    /// counts a unit or two, so that rounding each step's would falsify shares. Not worth exporting.
    rest: u32,
    /// What the running prompts will add: they count from their start on.
    started: u64,
    prompt_tokens_seen: u64,
    output_tokens_seen: u64,
    /// Whether requests of it were queued in the last view.
    queued: bool,
    /// Since when others' later requests have been started before its own.
    passed: Option<Micros>,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            weight_permille: 1_000,
            counter: 0,
            rest: 0,
            started: 0,
            prompt_tokens_seen: 0,
            output_tokens_seen: 0,
            queued: false,
            passed: None,
        }
    }
}

impl Account {
    fn virtual_tokens(&self) -> u64 {
        self.counter.saturating_add(self.started)
    }

    /// Adds what it was served to its counter.
    fn charge(&mut self, prompt_tokens: u64, output_tokens: u64, prices: Prices) {
        let tokens = u128::from(prompt_tokens) * u128::from(prices.input)
            + u128::from(output_tokens) * u128::from(prices.output);
        let (cost, weight) = (tokens * 1_000_000 + u128::from(self.rest), self.weight_permille.max(1));
        let units = u64::try_from(cost / u128::from(weight)).unwrap_or(u64::MAX);
        self.counter = self.counter.saturating_add(units);
        self.rest = (cost % u128::from(weight)) as u32;
    }

    /// What this many tokens of one kind count for this tenant.
    fn cost(&self, tokens: u64, price: u32) -> u64 {
        let tokens = u128::from(tokens) * u128::from(price) * 1_000_000;
        u64::try_from(tokens / u128::from(self.weight_permille.max(1))).unwrap_or(u64::MAX)
    }
}

impl Accounts {
    /// No tenant has been served anything.
    pub fn new(prices: Prices) -> Self {
        Self { prices, by_tenant: BTreeMap::new(), last_to_leave: None }
    }

    /// Updates the counters from a view: charges what was served since the last one, and lifts those of
    /// tenants that have requests queued again.
    pub fn observe(&mut self, step: &Step) {
        self.charge(step);
        // Includes tenants whose requests admission holds, invisible to the scheduler: they aren't idle.
        let held = step.tenants.iter().filter(|tenant| tenant.waiting > 0).map(|tenant| tenant.id);
        let queued: BTreeSet<TenantId> =
            step.waiting.iter().map(|waiting| waiting.tenant()).chain(held).collect();
        let left =
            self.by_tenant.iter().filter(|(tenant, account)| account.queued && !queued.contains(tenant));
        if let Some((tenant, _)) = left.max_by_key(|(_, account)| account.virtual_tokens()) {
            self.last_to_leave = Some(*tenant);
        }
        let floor = self.floor(&queued);
        for (tenant, account) in &mut self.by_tenant {
            account.queued = queued.contains(tenant) && account.queued;
        }
        for tenant in queued {
            let account = self.by_tenant.entry(tenant).or_default();
            if !account.queued {
                account.queued = true;
                account.counter = account.counter.max(floor.saturating_sub(account.started));
            }
        }
    }

    fn charge(&mut self, step: &Step) {
        for tenant in step.tenants.iter() {
            // What was served before a tenant was first seen is not charged.
            let account = self.by_tenant.entry(tenant.id).or_insert_with(|| Account {
                prompt_tokens_seen: tenant.prompt_tokens_served,
                output_tokens_seen: tenant.output_tokens_served,
                ..Account::default()
            });
            account.weight_permille = tenant.weight_permille;
            let prompt = tenant.prompt_tokens_served.saturating_sub(account.prompt_tokens_seen);
            let output = tenant.output_tokens_served.saturating_sub(account.output_tokens_seen);
            account.charge(prompt, output, self.prices);
            account.prompt_tokens_seen = tenant.prompt_tokens_served;
            account.output_tokens_seen = tenant.output_tokens_served;
        }
        self.by_tenant.values_mut().for_each(|account| account.started = 0);
        for prompt in step.running.iter().filter(|running| !running.is_decoding()) {
            let account = self.by_tenant.entry(prompt.tenant()).or_default();
            let cost = account.cost(u64::from(prompt.remaining_tokens()), self.prices.input);
            account.started = account.started.saturating_add(cost);
        }
    }

    /// The level to which a tenant that comes back is lifted: the smallest counter of the tenants that stayed
    /// queued or, if there was none, that of the last to leave.
    fn floor(&self, queued: &BTreeSet<TenantId>) -> u64 {
        let stayed =
            queued.iter().filter_map(|tenant| self.by_tenant.get(tenant)).filter(|account| account.queued);
        let last = || self.last_to_leave.and_then(|tenant| self.by_tenant.get(&tenant));
        stayed.map(Account::virtual_tokens).min().or_else(|| last().map(Account::virtual_tokens)).unwrap_or(0)
    }

    /// The waiting sequences, each chosen as if those before it had started: first those of tenants that were
    /// passed over for too long, then those that ran before, both by arrival, then those of the tenant with
    /// the smallest counter.
    pub fn order<'a>(&self, step: &'a Step) -> impl Iterator<Item = Sequence<'a>> {
        let mut accounts = self.by_tenant.clone();
        let mut queues: BTreeMap<TenantId, VecDeque<Sequence<'a>>> = BTreeMap::new();
        for waiting in step.waiting.iter() {
            queues.entry(waiting.tenant()).or_default().push_back(waiting);
        }
        let (limit, price) = (step.patience(Micros::NEVER), self.prices.input);
        std::iter::from_fn(move || {
            let turn = |tenant: &TenantId, queue: &VecDeque<Sequence<'a>>| {
                let head = *queue.front()?;
                let account = accounts.get(tenant).copied().unwrap_or_default();
                let passed = account.passed.is_some_and(|since| step.now.since(since) >= limit);
                let (class, place) = match (passed, head.preemptions()) {
                    (true, _) => (0, Some(arrival(head))),
                    (false, 1..) => (1, Some(arrival(head))),
                    (false, 0) => (2, None),
                };
                Some((class, place, account.virtual_tokens(), *tenant))
            };
            let (.., tenant) = queues.iter().filter_map(|(tenant, queue)| turn(tenant, queue)).min()?;
            let sequence = queues.get_mut(&tenant)?.pop_front()?;
            let account = accounts.entry(tenant).or_default();
            account.passed = None;
            let cost = account.cost(u64::from(sequence.remaining_tokens()), price);
            account.started = account.started.saturating_add(cost);
            Some(sequence)
        })
    }

    /// Notes which tenants the starts of this step pass over.
    pub fn note(&mut self, step: &Step, started: &[SequenceId]) {
        let starts = |waiting: &Sequence<'_>| started.contains(&waiting.id());
        let starting: Vec<_> = if started.is_empty() {
            Vec::new()
        } else {
            step.waiting.iter().filter(starts).map(|waiting| (waiting.tenant(), arrival(waiting))).collect()
        };
        let Some(last) = starting.iter().map(|(_, arrival)| *arrival).max() else { return };
        for waiting in step.waiting.iter().filter(|waiting| arrival(*waiting) < last) {
            let account = self.by_tenant.entry(waiting.tenant()).or_default();
            account.passed.get_or_insert(step.now);
        }
        for (tenant, _) in starting {
            self.by_tenant.entry(tenant).or_default().passed = None;
        }
    }
}

fn arrival(waiting: Sequence<'_>) -> (Micros, SequenceId) {
    (waiting.arrived(), waiting.id())
}

/// Bytes of an account in a state, which begins with the last tenant to leave.
const ACCOUNT_BYTES: usize = 4 + 4 * 8;

impl Accounts {
    /// The counters, to be carried over a swap.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.last_to_leave.map_or(u32::MAX, |tenant| tenant.0).to_le_bytes().to_vec();
        for (tenant, account) in &self.by_tenant {
            bytes.extend(tenant.0.to_le_bytes());
            let seen = [account.prompt_tokens_seen, account.output_tokens_seen];
            for number in [account.counter, seen[0], seen[1], u64::from(account.queued)] {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads the counters that `to_bytes` wrote.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        let wrong = || format!("counters take 4 bytes and {ACCOUNT_BYTES} a tenant, not {}", bytes.len());
        let (last, accounts) = bytes.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (accounts, []) = accounts.as_chunks::<ACCOUNT_BYTES>() else { return Err(wrong()) };
        let last = u32::from_le_bytes(*last);
        self.last_to_leave = (last != u32::MAX).then_some(TenantId(last));
        self.by_tenant = accounts.iter().map(read_account).collect();
        Ok(())
    }
}

fn read_account(bytes: &[u8; ACCOUNT_BYTES]) -> (TenantId, Account) {
    let (tenant, numbers) = bytes.split_first_chunk::<4>().expect("an account is longer");
    let (numbers, _) = numbers.as_chunks::<8>();
    let number = |at: usize| u64::from_le_bytes(numbers[at]);
    let account = Account {
        counter: number(0),
        prompt_tokens_seen: number(1),
        output_tokens_seen: number(2),
        queued: number(3) != 0,
        ..Account::default()
    };
    (TenantId(u32::from_le_bytes(*tenant)), account)
}
