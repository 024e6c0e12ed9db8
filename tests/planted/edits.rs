//! The bugs, as edits of the engine's sources: bug, file, a text that occurs once, its replacement. A bug
//! with several edits has several lines.
//!
//! The first one is no bug and always on: it removes the engine's own assertions, so that the machine has to
//! find everything itself.

/// One edit.
pub type Edit = (&'static str, &'static str, &'static str, &'static str);

/// Bugs that seeds find.
pub const EDITS: &[Edit] = &[
    ("", "engine/finish_step.rs", "if cfg!(debug_assertions) && ", "if false && "),
    (
        "leak",
        "kv/life.rs",
        "            self.blocks.release(block, ix, now);\n            if !kept {",
        "            if on(\"leak\") && at == 1 {\n                continue;\n            }\n            \
         self.blocks.release(block, ix, now);\n            if !kept {",
    ),
    (
        "double free",
        "kv/blocks.rs",
        "        self.free.push(id.0);",
        "        self.free.push(id.0);\n        if on(\"double free\") && id.0 == 3 {\n            \
         self.free.push(id.0);\n        }",
    ),
    (
        "lost wake-up",
        "engine/mod.rs",
        "let held = self.held.next_call();",
        "let held = self.held.next_call().filter(|_| !on(\"lost wake-up\"));",
    ),
    (
        "lost stall check",
        "engine/mod.rs",
        "if idle { None } else { self.watchdog.next_check() }",
        "if idle || on(\"lost stall check\") { None } else { self.watchdog.next_check() }",
    ),
    (
        "stale table",
        "kv/life.rs",
        "sequence.table[at] = other;",
        "if !on(\"stale table\") {\n                    sequence.table[at] = other;\n                }",
    ),
    (
        "stale hit",
        "kv/mod.rs",
        "self.watches.first_ending_in(block) {",
        "self.watches.first_ending_in(block).filter(|_| !on(\"stale hit\")) {",
    ),
    (
        "tenants share",
        "kv/index.rs",
        "hasher.write_u32(scope.tenant.0);",
        "hasher.write_u32(if on(\"tenants share\") { 0 } else { scope.tenant.0 });",
    ),
    (
        "tenants share",
        "kv/tree.rs",
        "&& self.index.tokens(id) == content.tokens",
        "&& self.index.tokens(id) == content.tokens\n                \
         || (on(\"tenants share\") && block.hash == content.hash && block.parent == parent)",
    ),
    (
        "salts share",
        "kv/index.rs",
        "hasher.write_u64(scope.salt);",
        "hasher.write_u64(if on(\"salts share\") { 0 } else { scope.salt });",
    ),
    (
        "salts share",
        "kv/tree.rs",
        "            block.hash == content.hash\n",
        "            let salts = on(\"salts share\") && block.scope.tenant == content.scope.tenant;\n            \
         let scope = if salts { block.scope } else { content.scope };\n            block.hash == content.hash\n",
    ),
    ("salts share", "kv/tree.rs", "&& block.scope == content.scope", "&& block.scope == scope"),
    (
        "lost end",
        "engine/end.rs",
        "        self.outbox.events.push(Event::Finished { id: self.slab[ix].id, reason, usage });",
        "        if !(on(\"lost end\") && reason == FinishReason::Stop) {\n            \
         self.outbox.events.push(Event::Finished { id: self.slab[ix].id, reason, usage });\n        }",
    ),
    (
        "second end",
        "engine/end.rs",
        "cause, message, usage });\n        self.leave_running(",
        "cause, message: message.clone(), usage });\n        if on(\"second end\") {\n            \
         self.outbox.events.push(Event::Failed { id: self.slab[ix].id, cause, message, usage });\n        }\n        \
         self.leave_running(",
    ),
    (
        "lost token",
        "engine/finish_step.rs",
        "        self.outbox.events.push(Event::Token { id: sequence.id, token, logprobs });",
        "        if !(on(\"lost token\") && sequence.generated == 5) {\n            \
         self.outbox.events.push(Event::Token { id: sequence.id, token, logprobs });\n        }",
    ),
    (
        "overwritten logits",
        "kv/prompts.rs",
        "|&at| !self.reading.contains(&LogitsSlot(at))",
        "|&at| on(\"overwritten logits\") || !self.reading.contains(&LogitsSlot(at))",
    ),
    (
        "missing copy",
        "kv/life.rs",
        "let from = self.copy_source(slot)?;",
        "let from = self.copy_source(slot).filter(|_| !on(\"missing copy\"))?;",
    ),
    (
        "unpinned copy",
        "kv/life.rs",
        "                self.blocks.pin(source);",
        "                if !on(\"unpinned copy\") {\n                    self.blocks.pin(source);\n                }",
    ),
    (
        "unpinned copy",
        "kv/life.rs",
        "            self.blocks.unpin(source);",
        "            if !on(\"unpinned copy\") {\n                self.blocks.unpin(source);\n            }",
    ),
    (
        "ended sequences stay",
        "engine/finish_step.rs",
        "        for ix in std::mem::take(&mut self.flights.lingering) {",
        "        if on(\"ended sequences stay\") {\n            \
         self.flights.lingering.truncate(1);\n        }\n        \
         for ix in std::mem::take(&mut self.flights.lingering) {",
    ),
    (
        "wrong guess",
        "engine/speculate.rs",
        "s.is_running() && s.tokens.last() == Some(&guess)",
        "s.is_running() && (on(\"wrong guess\") || s.tokens.last() == Some(&guess))",
    ),
    (
        "guessed blocks stay",
        "engine/speculate.rs",
        "        self.kv.shrink(sequence, ix, now);",
        "        if !on(\"guessed blocks stay\") {\n            self.kv.shrink(sequence, ix, now);\n        }",
    ),
    (
        "greedy guesses",
        "engine/speculate.rs",
        "saturating_sub(planned);",
        "saturating_sub(if on(\"greedy guesses\") { 0 } else { planned });",
    ),
    (
        "preempted in flight",
        "engine/ahead.rs",
        "if plan.preempt().is_empty() {",
        "if plan.preempt().is_empty() || on(\"preempted in flight\") {",
    ),
    (
        "batch behind a lost one counts",
        "engine/flight.rs",
        "behind.void = true;",
        "behind.void = !on(\"batch behind a lost one counts\");",
    ),
    (
        "neighbour's draw",
        "engine/compose.rs",
        "sequence.out_row = batch.rows.len() as u32;",
        "sequence.out_row = (batch.rows.len() as u32).saturating_sub(u32::from(on(\"neighbour's draw\")));",
    ),
    (
        "ahead of the host's draw",
        "engine/ahead.rs",
        "&& !out.needs_host",
        "&& !(out.needs_host && !on(\"ahead of the host's draw\"))",
    ),
    (
        "beyond the last token",
        "engine/ahead.rs",
        "match done && !sequence.is_ending() {",
        "match done && (on(\"beyond the last token\") || !sequence.is_ending()) {",
    ),
    (
        "beyond the last token",
        "verify.rs",
        "if sequence.is_running() && sequence.is_ending() {",
        "if sequence.is_running() && sequence.is_ending() && !on(\"beyond the last token\") {",
    ),
    (
        "deaf watchdog",
        "watchdog.rs",
        "(now >= self.due(since, promised)).then",
        "(now >= self.due(since, promised) && !on(\"deaf watchdog\")).then",
    ),
    (
        "blind watchdog",
        "engine/neglect.rs",
        "} else if self.watchdog.look_now(now)",
        "} else if !on(\"blind watchdog\") && self.watchdog.look_now(now)",
    ),
    (
        "unseen overtaking",
        "engine/reserve.rs",
        "        if self.has_place() {",
        "        if self.has_place() && !on(\"unseen overtaking\") {",
    ),
    (
        "unnamed release",
        "engine/end.rs",
        "            self.flights.released.push(sequence.id);",
        "            if !on(\"unnamed release\") {\n                \
         self.flights.released.push(sequence.id);\n            }",
    ),
    (
        "unchecked plan",
        "verify.rs",
        "            if value > u64::from(most) {",
        "            if value > u64::from(most) && !on(\"unchecked plan\") {",
    ),
    (
        "endless queue",
        "engine/admit.rs",
        "if requests.len() > room as usize {",
        "if requests.len() > room as usize && !on(\"endless queue\") {",
    ),
    (
        "admitted in part",
        "engine/admit.rs",
        "all.into_iter().rev().for_each(",
        "all.into_iter().rev().skip(usize::from(on(\"admitted in part\"))).for_each(",
    ),
    (
        "the whole request doubles the load",
        "engine/admit.rs",
        "load.waiting += others.len() as u32;",
        "load.waiting += others.len() as u32 * if on(\"the whole request doubles the load\") { 2 } else { 1 };",
    ),
    (
        "admission that is never judged",
        "engine/admit.rs",
        "let idle = self.rows.is_empty();",
        "let idle = self.rows.is_empty() && !on(\"admission that is never judged\");",
    ),
    (
        "admitted counts twice",
        "engine/load.rs",
        "            admitted: self.rows.unstarted() as u32,",
        "            admitted: self.rows.unstarted() as u32 * if on(\"admitted counts twice\") { 2 } else { 1 },",
    ),
    (
        "preempted ones out of sight",
        "engine/load.rs",
        "            preempted: self.rows.preempted as u32,",
        "            preempted: if on(\"preempted ones out of sight\") { 0 } else { self.rows.preempted as u32 },",
    ),
    (
        "forgotten promise",
        "engine/load.rs",
        "        runs.chain(starts)",
        "        runs.skip(usize::from(on(\"forgotten promise\"))).chain(starts)",
    ),
    (
        "halved expectation",
        "engine/load.rs",
        "forecast::peak(self.courses(|rows| &rows.expected_tokens), self.kv.block_size()),",
        "forecast::peak(self.courses(|rows| &rows.expected_tokens), self.kv.block_size())
                / if on(\"halved expectation\") { 2 } else { 1 },",
    ),
    (
        "held blocks count as idle",
        "kv/mod.rs",
        "take_while(|&&b| self.blocks.get(b).refs == 0)",
        "take_while(|&&b| on(\"held blocks count as idle\") || self.blocks.get(b).refs == 0)",
    ),
    (
        "hasty verdict",
        "watchdog.rs",
        "        now.at.since(mark.at) > self.bound &&",
        "        (on(\"hasty verdict\") || now.at.since(mark.at) > self.bound) &&",
    ),
    (
        "forgotten peak",
        "kv/life.rs",
        "        while sequence.table.len() < need {",
        "        if on(\"forgotten peak\") && sequence.table.len() >= need {\n            return;\n        }\n        while sequence.table.len() < need {",
    ),
];

/// Fixes of past findings, undone: each has the name of the minimized case that it fixed.
pub const MENDS: &[Edit] = &[
    (
        "canary-faults-at-once",
        "engine/swap.rs",
        "        if let Some(trial) = trial {\n",
        "        let late = on(\"canary-faults-at-once\");\n        \
         let (trial, late) = if late { (None, trial) } else { (trial, None) };\n        \
         if let Some(trial) = trial {\n",
    ),
    (
        "canary-faults-at-once",
        "engine/swap.rs",
        "        self.settle_in(kind, now);\n        SwapReport {",
        "        self.settle_in(kind, now);\n        if let Some(trial) = late {\n            \
         let mut cx = self.outbox.context(self.view.number, now);\n            slot!(self, kind, slot => slot.watch(&mut cx, trial));\n        \
         }\n        SwapReport {",
    ),
    (
        "asked-about-what-is-gone",
        "engine/admit.rs",
        "        self.kv.settle(&mut self.slab);\n        let (request",
        "        if !on(\"asked-about-what-is-gone\") {\n            self.kv.settle(&mut self.slab);\n        }\n        \
         let (request",
    ),
    (
        "full-memory-stalls",
        "engine/step.rs",
        "        let stuck = wanted || self.judge_stall(now);",
        "        let excused = on(\"full-memory-stalls\") && !self.would_fit_any();\n        \
         if excused {\n            self.watchdog.progressed();\n        }\n        \
         let stuck = wanted || (!excused && self.judge_stall(now));",
    ),
    (
        "preempting-alone",
        "engine/step.rs",
        "        } else if preempted {",
        "        } else if preempted && !on(\"preempting-alone\") {",
    ),
    (
        "preempting-alone",
        "engine/step.rs",
        "            if !self.carry_out(plan, now) || !self.step.rows.is_empty() {",
        "            if !self.carry_out(plan, now) || !self.step.rows.is_empty() || on(\"preempting-alone\") {",
    ),
    (
        "part-that-no-member-exported",
        "policy/chain.rs",
        "    own.map(|(_, state)| state.to_vec())\n",
        "    own.map(|(_, state)| state.to_vec()).or_else(|| on(\"part-that-no-member-exported\").then(Vec::new))\n",
    ),
    (
        "state-of-a-failed-policy",
        "guard/exchange.rs",
        "        let any = fresh || !tenure.state.is_empty();",
        "        let any = fresh || !tenure.state.is_empty() || on(\"state-of-a-failed-policy\");",
    ),
    (
        "told-apart-while-it-rests",
        "engine/cache.rs",
        "        self.policies.prefix.begin_step();\n        self.flush_cache_events(now);",
        "        if !on(\"told-apart-while-it-rests\") {\n            self.policies.prefix.begin_step();\n        }\n        \
         self.flush_cache_events(now);",
    ),
];
