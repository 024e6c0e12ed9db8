//! Turns shapes into automata: on threads of its own, few at a time, within bounds of size and work.
//!
//! A shape is compiled in a sandbox first (`infer-grammar`), so a hostile one costs its client a 422 and other requests
//! nothing. How much memory that took is also what a compiled shape counts for in the cache, and each copy of it in the
//! memory that live requests share.
//!
//! Tenants share no compiled shapes: the time of a response would tell which ones others have asked for. They share the
//! compilers in turns (`turns`).

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use infer_core::TenantId;
use infer_grammar::{Rehearsal, UNSATISFIABLE, Unfit, explained, limits};
use infer_model::Tokenizer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, earley::SlicedBiasComputer};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OnceCell, oneshot};
use tokio::time::Instant;

use super::ahead::Ahead;
use super::mask::{Mask, Vocabulary};
use super::prelude::Prelude;
use super::room::{Room, Share};
use super::shape::Shape;
use super::turns::{Permit, Turns};
use crate::http::ApiError;
use crate::policies;
use crate::shares::Holder;

/// Compilations at once: they are processor time that tokens need too.
const AT_ONCE: usize = 2;
/// Longest wait for a turn.
const TURN_PATIENCE: Duration = Duration::from_secs(20);
/// Longest wait for the compilation of a shape and its alternatives. The thread itself ends when the sandbox's fuel
/// does.
const PATIENCE: Duration = Duration::from_secs(20);
/// Compilers recurse over what clients wrote; what fits into the sandbox's stack fits here.
const STACK_BYTES: usize = 64 << 20;
/// Compiled shapes in the cache; the least recently used goes first.
const KEPT: usize = 32;
/// Memory that all of them took in the sandbox, whose pointers are half as wide as the host's.
const KEPT_BYTES: usize = 64 << 20;
/// Sequences of a request that share one automaton's caches, its lock, and the limit of its states.
const SHARING: usize = 4;
/// Longest message of a compiler that a client is shown.
const MESSAGE_BYTES: usize = 400;

/// Compiles shapes for one model's vocabulary. Cheap to clone.
#[derive(Clone)]
pub struct Compiler {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: Tokenizer,
    vocab_size: u32,
    ends: Arc<[u32]>,
    /// Whether the next two are there: a large vocabulary takes a while, and the sandbox's code seconds where no cache has
    /// it.
    prepared: OnceCell<()>,
    factory: OnceLock<Result<ParserFactory, String>>,
    /// Empty as long as the machine refuses what it needs.
    rehearsal: OnceLock<Rehearsal>,
    /// Started by the first request that asks.
    ahead: OnceLock<Result<Ahead, String>>,
    turns: Turns,
    room: Room,
    kept: Mutex<Kept>,
}

/// What was compiled lately.
#[derive(Default)]
struct Kept {
    entries: VecDeque<Entry>,
    bytes: usize,
}

struct Entry {
    digest: Digest,
    /// Memory that compiling it took in the sandbox.
    bytes: usize,
    matcher: Matcher,
}

/// A shape's automaton, and the memory that compiling it took in the sandbox.
struct Compiled {
    matcher: Matcher,
    bytes: usize,
}

/// The right to compile, until somebody has waited too long.
#[derive(Clone, Debug)]
struct Turn {
    /// Given back when the last thread that compiles under it has ended.
    permit: Arc<Permit>,
    until: Instant,
}

/// Of a tenant and a shape's key.
type Digest = [u8; 32];

impl Compiler {
    /// For a model of `vocab_size` tokens that ends its output with one of `ends`.
    pub fn new(tokenizer: Tokenizer, vocab_size: u32, ends: Arc<[u32]>) -> Self {
        Self {
            inner: Arc::new(Inner {
                tokenizer,
                vocab_size,
                ends,
                prepared: OnceCell::new(),
                factory: OnceLock::new(),
                ahead: OnceLock::new(),
                rehearsal: OnceLock::new(),
                turns: Turns::new(AT_ONCE),
                room: Room::new(),
                kept: Mutex::default(),
            }),
        }
    }

    /// Waits until shapes can be compiled, and prepares for that, on a thread of its own, unless somebody else does.
    pub async fn prepare(&self) -> Result<(), ApiError> {
        let prepare = || async {
            let inner = Arc::clone(&self.inner);
            let (reply, done) = oneshot::channel();
            std::thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    inner.prepare();
                    let _ = reply.send(());
                })
                .map_err(no_thread)?;
            // If the thread panics, so does the one that compiles, and its shape is refused.
            let _ = done.await;
            Ok(())
        };
        self.inner.prepared.get_or_try_init(prepare).await.copied()
    }

    /// A mask for each of `count` sequences of a tenant's request, or the 422 that says what is wrong with the shape or its alternative. 503
    /// if other requests compile, or take the memory that automata may, or the machine has none for the sandbox.
    pub async fn masks(
        &self,
        holder: Holder,
        shape: &Shape,
        count: usize,
        prelude: Prelude,
    ) -> Result<Vec<Arc<Mask>>, ApiError> {
        let ahead = self.inner.ahead()?;
        let copies = count.div_ceil(SHARING);
        let (mut matchers, mut taken, mut turn) = (Vec::new(), Vec::new(), None);
        for shape in shape.alternatives() {
            let Compiled { matcher, bytes } = match self.inner.find(&digest_of(holder.tenant, shape)) {
                Some(compiled) => compiled,
                None => self.compiled(holder.tenant, shape, &mut turn).await?,
            };
            // Before the copies are made, and before anything waits with this one.
            taken.push(self.inner.room.take(holder, shape.field, bytes, copies)?);
            matchers.push(matcher);
        }
        let share = Share::of(taken);
        let mask = |at: usize| {
            if at > 0 && at.is_multiple_of(SHARING) {
                matchers.iter_mut().for_each(|matcher| *matcher = matcher.deep_clone());
            }
            let Inner { tokenizer, ends, .. } = &*self.inner;
            let vocabulary = Vocabulary { tokenizer: tokenizer.clone(), ends: Arc::clone(ends) };
            let (ahead, share) = (ahead.clone(), share.clone());
            Arc::new(Mask::new(prelude.clone(), vocabulary, matchers.clone(), ahead, share))
        };
        Ok((0..count).map(mask).collect())
    }

    /// Alternatives are compiled one after the other in one `turn`, which the first that needs it takes.
    async fn compiled(
        &self,
        tenant: TenantId,
        shape: &Shape,
        turn: &mut Option<Turn>,
    ) -> Result<Compiled, ApiError> {
        if self.inner.ends.is_empty() {
            let message = "this model has no end token, which structured output needs";
            return Err(ApiError::invalid(shape.field, message).code("not_supported"));
        }
        // Before the time that the shape has.
        self.prepare().await?;
        let turn = match turn {
            Some(turn) => turn.clone(),
            None => turn.insert(self.turn(tenant, TURN_PATIENCE).await?).clone(),
        };
        // The request that had the turn before may have compiled the same.
        let digest = digest_of(tenant, shape);
        if let Some(compiled) = self.inner.find(&digest) {
            return Ok(compiled);
        }
        let (until, compiled) = (turn.until, self.compile(shape, turn.permit));
        let compiled = tokio::time::timeout_at(until, compiled).await.map_err(|_| {
            let message = format!("not compiled within {} s; make it simpler", PATIENCE.as_secs());
            ApiError::invalid(shape.field, message)
        })??;
        self.inner.keep(digest, compiled.bytes, &compiled.matcher);
        Ok(compiled)
    }

    /// A wait for others is no fault of a shape.
    async fn turn(&self, tenant: TenantId, patience: Duration) -> Result<Turn, ApiError> {
        let permit = tokio::time::timeout(patience, self.inner.turns.take(tenant)).await;
        let permit = permit.map_err(|_| ApiError::unavailable("busy", "other shapes are being compiled"))?;
        Ok(Turn { permit: Arc::new(permit), until: Instant::now() + PATIENCE })
    }

    async fn compile(&self, shape: &Shape, permit: Arc<Permit>) -> Result<Compiled, ApiError> {
        let (inner, work) = (Arc::clone(&self.inner), shape.clone());
        let (reply, answer) = oneshot::channel();
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let _ = reply.send(inner.compile(&work));
                drop(permit);
            })
            .map_err(no_thread)?;
        let failed = |_| Err(Unfit::Grammar("the compiler failed on it".to_owned()));
        answer.await.unwrap_or_else(failed).map_err(|unfit| match unfit {
            Unfit::Grammar(why) => {
                let mut why = shape.explained(&explained(&why));
                why.truncate(why.floor_char_boundary(MESSAGE_BYTES));
                ApiError::invalid(shape.field, why)
            }
            Unfit::Machine(why) => ApiError::unavailable("memory", why).param(shape.field),
        })
    }
}

fn digest_of(tenant: TenantId, shape: &Shape) -> Digest {
    Sha256::new().chain_update(tenant.0.to_le_bytes()).chain_update(shape.key()).finalize().into()
}

fn no_thread(error: impl Display) -> ApiError {
    ApiError::internal("structured_output", format!("can't start a thread: {error}"))
}

impl Inner {
    fn ahead(&self) -> Result<&Ahead, ApiError> {
        let ahead = self.ahead.get_or_init(|| Ahead::start().map_err(|error| error.to_string()));
        ahead.as_ref().map_err(no_thread)
    }

    fn compile(&self, shape: &Shape) -> Result<Compiled, Unfit> {
        let grammar = shape.grammar();
        let bytes = self.rehearsal()?.check(&limits(), &grammar)?;
        let parser = self.parsers()?.create_parser(grammar).map_err(|error| error.to_string())?;
        let mut matcher = Matcher::new(Ok(parser));
        // What no text can satisfy, or is too much work at its very start, is found out here.
        let first = matcher.compute_mask_or_eos().map_err(|error| explained(&error.to_string()))?;
        if first.is_zero() {
            return Err(UNSATISFIABLE.to_owned().into());
        }
        Ok(Compiled { matcher, bytes })
    }

    fn prepare(&self) {
        if self.ends.is_empty() {
            return;
        }
        let begun = Instant::now();
        match self.rehearsal().and_then(|_| Ok(self.parsers()?)) {
            Ok(_) => tracing::debug!(ms = begun.elapsed().as_millis() as u64, "ready for structured output"),
            Err(error) => tracing::warn!("structured output is not available: {error}"),
        }
    }

    fn parsers(&self) -> Result<&ParserFactory, String> {
        self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)
    }

    /// Only a success is kept: what the machine refused it may grant to the next shape.
    fn rehearsal(&self) -> Result<&Rehearsal, Unfit> {
        if let Some(rehearsal) = self.rehearsal.get() {
            return Ok(rehearsal);
        }
        let new = Rehearsal::new(policies::compiled_dir().as_deref())?;
        Ok(self.rehearsal.get_or_init(|| new))
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let words: Vec<Vec<u8>> = (0..self.vocab_size).map(|token| self.word(token)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(self.vocab_size, self.ends[0]), &words);
        let trie = trie.with_eos_tokens(&self.ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| error.to_string())?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(factory)
    }

    /// A token's bytes; special ones are marked, so that no text is mistaken for them.
    fn word(&self, token: u32) -> Vec<u8> {
        let Some(written) = self.tokenizer.token(token) else { return Vec::new() };
        let bytes = self.tokenizer.token_bytes(token);
        if self.tokenizer.is_special(&written) || self.ends.contains(&token) {
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat();
        }
        bytes
    }

    fn find(&self, digest: &Digest) -> Option<Compiled> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.entries.iter().position(|entry| entry.digest == *digest)?;
        let entry = kept.entries.remove(at)?;
        // A copy of its own: the caches that grow with use are its request's alone.
        let compiled = Compiled { matcher: entry.matcher.deep_clone(), bytes: entry.bytes };
        kept.entries.push_back(entry);
        Some(compiled)
    }

    fn keep(&self, digest: Digest, bytes: usize, matcher: &Matcher) {
        let matcher = matcher.deep_clone();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.entries.iter().any(|entry| entry.digest == digest) {
            return;
        }
        kept.bytes += bytes;
        kept.entries.push_back(Entry { digest, bytes, matcher });
        while kept.entries.len() > KEPT || kept.bytes > KEPT_BYTES {
            let Some(oldest) = kept.entries.pop_front() else { return };
            kept.bytes -= oldest.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use infer_core::Constraint as _;
    use infer_model::Source;
    use serde_json::json;

    use super::super::room::{FREE_BYTES, LIVE_BYTES};
    use super::*;

    const VOCAB: u32 = 1_792;
    const TENANT: TenantId = TenantId(1);
    const ONLY: Holder = Holder { tenant: TENANT, alone: true };

    fn compiler() -> Compiler {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        Compiler::new(tokenizer, VOCAB, Arc::from([1]))
    }

    fn regex(regex: &str) -> Shape {
        let shape = Shape::of_outputs(json!({"regex": regex}).as_object().unwrap().clone());
        shape.unwrap_or_else(|error| panic!("{}", error.message()))
    }

    fn digest(shape: &Shape) -> Digest {
        digest_of(TENANT, shape)
    }

    /// So many turns, which must be free.
    async fn turns(compiler: &Compiler, count: usize) -> Vec<Turn> {
        let mut turns = Vec::new();
        for _ in 0..count {
            let turn = compiler.turn(TENANT, Duration::ZERO).await;
            turns.push(turn.unwrap_or_else(|error| panic!("{}", error.message())));
        }
        turns
    }

    fn allowed(mask: &Mask) -> usize {
        let mut logits = vec![0.0; VOCAB as usize];
        assert!(mask.restrict(&[], &mut logits));
        logits.iter().filter(|&&logit| logit == 0.0).count()
    }

    #[tokio::test]
    async fn who_never_gets_a_turn_is_told_to_come_back() {
        let compiler = compiler();
        let _held = turns(&compiler, AT_ONCE).await;
        let error = compiler.turn(TENANT, Duration::ZERO).await.unwrap_err();
        assert_eq!((error.status().as_u16(), error.reason()), (503, "busy"), "{}", error.message());
    }

    #[tokio::test]
    async fn thread_that_the_machine_refuses_is_told() {
        let compiler = compiler();
        let refusal = std::io::Error::from(std::io::ErrorKind::WouldBlock).to_string();
        assert!(compiler.inner.ahead.set(Err(refusal.clone())).is_ok(), "nobody has asked yet");
        let error = compiler.masks(ONLY, &regex("a"), 1, Prelude::None).await.map(drop).unwrap_err();
        assert_eq!((error.status().as_u16(), error.reason()), (500, "structured_output"));
        assert_eq!(error.message(), format!("can't start a thread: {refusal}"));
    }

    #[tokio::test]
    async fn prepared_compiler_has_all_that_a_shape_needs() {
        let compiler = compiler();
        compiler.prepare().await.unwrap_or_else(|error| panic!("{}", error.message()));
        assert!(compiler.inner.rehearsal.get().is_some());
        assert!(compiler.inner.factory.get().is_some_and(Result::is_ok));
    }

    #[tokio::test]
    async fn alternatives_are_compiled_in_one_turn() {
        let (compiler, narrow, wide) = (compiler(), regex("a"), regex("[a-z]+"));
        let _held = turns(&compiler, AT_ONCE - 1).await;
        let mut turn = None;
        for shape in [&narrow, &wide] {
            let compiled = compiler.compiled(TENANT, shape, &mut turn).await;
            compiled.unwrap_or_else(|error| panic!("{}", error.message()));
            assert!(compiler.turn(TENANT, Duration::ZERO).await.is_err(), "it is kept");
        }
        // One that took too long leaves nothing for the next.
        let late = regex("[0-9]+");
        let until = Instant::now() - PATIENCE;
        let mut turn = turn.map(|turn| Turn { until, ..turn });
        let error = compiler.compiled(TENANT, &late, &mut turn).await.map(drop).unwrap_err();
        assert!(error.message().contains("not compiled within"), "{}", error.message());
    }

    #[test]
    fn formats_that_count_as_known_are_known_to_the_compiler() {
        let compiler = compiler();
        for format in super::super::keywords::FORMATS {
            let schema = json!({"type": "string", "format": format});
            let shape = Shape::of_outputs(json!({"json": schema}).as_object().unwrap().clone());
            let shape = shape.unwrap_or_else(|error| panic!("{format}: {}", error.message()));
            assert!(shape.key().contains(&format!("\"{format}\"")), "{}", shape.key());
            compiler.inner.compile(&shape).map(drop).unwrap_or_else(|error| panic!("{format}: {error}"));
        }
    }

    #[test]
    fn json_has_a_blank_or_an_indent_between_its_parts_and_no_run_of_them_or_none_at_all() {
        let compiler = compiler();
        let schema = json!({"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "string"}},
            "required": ["a", "b"], "additionalProperties": false});
        let ways = [json!({"json": schema}), json!({"json_object": true})];
        let texts = [
            (r#"{"a":[1,2],"b":"two  blanks"}"#, true, true),
            (r#"{"a": [1, 2], "b": ""}"#, true, false),
            ("{\n\t\"a\": [1,\r\n      2], \"b\": \"\"\n}", true, false),
            (r#"{  "a":[],"b":""}"#, false, false),
            (r#"{"a":[1,  2],"b":""}"#, false, false),
            ("{\"a\":[],\n\n\"b\":\"\"}", false, false),
            ("{\"a\":[], \n\"b\":\"\"}", false, false),
            ("{\"a\":[],\t\"b\":\"\"}", false, false),
        ];
        for (way, is_compact) in ways.iter().flat_map(|way| [(way, false), (way, true)]) {
            let mut outputs = way.as_object().unwrap().clone();
            outputs.insert("disable_any_whitespace".to_owned(), json!(is_compact));
            let shape = Shape::of_outputs(outputs).unwrap_or_else(|error| panic!("{}", error.message()));
            let mut matcher = compiler.inner.compile(&shape).unwrap().matcher;
            for (text, few, never) in texts {
                let tokens = compiler.inner.tokenizer.encode(text, false).unwrap();
                let valid = matcher.validate_tokens(&tokens).unwrap();
                let fits = if is_compact { never } else { few };
                assert_eq!(valid == tokens.len(), fits, "{way} {is_compact} {text:?}: {valid} tokens fit");
            }
        }
    }

    #[tokio::test]
    async fn who_waited_takes_what_was_compiled_meanwhile() {
        let (compiler, narrow, wide) = (compiler(), regex("a"), regex("[a-z]+"));
        let held = turns(&compiler, AT_ONCE).await;
        let mut waiting = std::pin::pin!(compiler.masks(ONLY, &narrow, 1, Prelude::None));
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err(), "all turns are taken");
        // Something else under its name, so that it is known again.
        let planted = compiler.inner.compile(&wide).unwrap();
        compiler.inner.keep(digest(&narrow), 1, &planted.matcher);
        drop(held);
        let masks = waiting.await.unwrap_or_else(|error| panic!("{}", error.message()));
        assert!(allowed(&masks[0]) > 26, "it wasn't compiled again");
    }

    #[tokio::test]
    async fn what_a_tenant_had_compiled_is_found_by_no_other() {
        let (compiler, shape) = (compiler(), regex("a"));
        let masks = async |tenant: TenantId| {
            let masks = compiler.masks(Holder { tenant, ..ONLY }, &shape, 1, Prelude::None).await;
            masks.map(drop).unwrap_or_else(|error| panic!("{}", error.message()));
            compiler.inner.kept.lock().unwrap().entries.len()
        };
        assert_eq!([masks(TENANT).await, masks(TENANT).await], [1, 1]);
        assert_eq!(masks(TenantId(2)).await, 2);
    }

    #[tokio::test]
    async fn copies_for_live_requests_have_a_bound_in_which_ordinary_ones_do_not_count() {
        let (compiler, large, ordinary) = (compiler(), regex("[a-z]+"), regex("[0-9]+"));
        let matcher = compiler.inner.compile(&large).unwrap().matcher;
        let most = 32;
        compiler.inner.keep(digest(&large), FREE_BYTES + LIVE_BYTES / most, &matcher);
        compiler.inner.keep(digest(&ordinary), FREE_BYTES, &matcher);
        let masks = async |shape: &Shape, copies: usize| {
            compiler.masks(ONLY, shape, copies * SHARING, Prelude::None).await
        };
        let refused = async |copies: usize| {
            let error = masks(&large, copies).await.map(drop).unwrap_err();
            (error.status().as_u16(), error.reason())
        };
        let live = masks(&large, most).await.unwrap_or_else(|error| panic!("{}", error.message()));
        assert_eq!(refused(1).await, (503, "busy"));
        let beside = masks(&ordinary, 1).await.unwrap_or_else(|error| panic!("{}", error.message()));
        // The last choice of a request gives the memory back.
        let last = live.into_iter().next_back();
        assert_eq!(refused(1).await, (503, "busy"));
        drop(last);
        assert_eq!(refused(most + 1).await, (422, "invalid_value"));
        let again = masks(&large, most).await.unwrap_or_else(|error| panic!("{}", error.message()));
        assert_eq!((again.len(), beside.len()), (most * SHARING, SHARING));
    }

    #[tokio::test]
    async fn forms_of_one_tenant_leave_memory_to_those_of_others() {
        let (compiler, large, most) = (compiler(), regex("[a-z]+"), 64);
        let matcher = compiler.inner.compile(&large).unwrap().matcher;
        let [one, other] = [1, 2].map(|tenant| Holder { tenant: TenantId(tenant), alone: false });
        for holder in [one, other] {
            let digest = digest_of(holder.tenant, &large);
            compiler.inner.keep(digest, FREE_BYTES + LIVE_BYTES / most, &matcher);
        }
        let masks = async |holder: Holder, copies: usize| {
            let masks = compiler.masks(holder, &large, copies * SHARING, Prelude::None).await;
            masks.map_err(|error| (error.status().as_u16(), error.message().to_owned()))
        };
        let (status, _) = masks(one, most).await.map(drop).unwrap_err();
        assert_eq!(status, 422, "one request may not have all, either");
        let live = masks(one, most / 4 * 3).await.unwrap();
        let (status, why) = masks(one, 1).await.map(drop).unwrap_err();
        assert!(status == 503 && why.contains("this tenant's requests take its share"), "{why}");
        assert!(masks(other, most / 8).await.is_ok());
        drop(live);
        assert!(masks(one, most / 4 * 3).await.is_ok(), "it is free again");
    }

    #[tokio::test]
    async fn next_turn_is_of_a_tenant_that_has_none() {
        let (compiler, other) = (compiler(), TenantId(2));
        let mut held = turns(&compiler, AT_ONCE).await;
        let mut first = std::pin::pin!(compiler.turn(TENANT, TURN_PATIENCE));
        let mut second = std::pin::pin!(compiler.turn(other, TURN_PATIENCE));
        assert!(tokio::time::timeout(Duration::ZERO, &mut first).await.is_err(), "all turns are taken");
        assert!(tokio::time::timeout(Duration::ZERO, &mut second).await.is_err(), "all turns are taken");
        drop(held.pop());
        let _given = second.await.unwrap_or_else(|error| panic!("{}", error.message()));
        assert!(
            tokio::time::timeout(Duration::ZERO, &mut first).await.is_err(),
            "its tenant has another one"
        );
        drop(held);
        first.await.map(drop).unwrap_or_else(|error| panic!("{}", error.message()));
    }

    #[test]
    fn what_is_kept_is_bounded_by_number_and_by_size() {
        let (compiler, kept) = (compiler(), |compiler: &Compiler| {
            let kept = compiler.inner.kept.lock().unwrap();
            (kept.entries.len(), kept.bytes)
        });
        let matcher = compiler.inner.compile(&regex("a")).unwrap().matcher;
        for at in 0..40 {
            compiler.inner.keep([at; 32], 1_000, &matcher);
            compiler.inner.keep([at; 32], 1_000, &matcher);
        }
        assert_eq!(kept(&compiler), (KEPT, KEPT * 1_000));
        compiler.inner.keep([100; 32], KEPT_BYTES - 2_500, &matcher);
        assert_eq!(kept(&compiler), (3, KEPT_BYTES - 500));
        assert!(compiler.inner.find(&[100; 32]).is_some() && compiler.inner.find(&[0; 32]).is_none());
    }
}
