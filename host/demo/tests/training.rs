//! Training is reproducible from its seed, and it learns. A whole run takes minutes, so these tests use a few steps
//! of a narrow network.

#[path = "greedy/batch.rs"]
mod batch;

use batch::{BLOCK, LONGEST, single_row};
use infer_core::{Executor as _, LogitsSlot, StepOutput};
use infer_demo::train::{BEGIN, Corpus, Plan, Shape, Trained, train, train_from, write_checkpoint};
use infer_model::{DType, ExecutorOptions, KvCacheKind, Model, Source, Tokenizer};

fn corpus() -> Corpus {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    Corpus::read(&folder).expect("the corpus can be read")
}

fn plan(seed: u64) -> Plan {
    let shape = Shape {
        vocabulary: 600,
        hidden: 64,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head: 32,
        intermediate: 96,
        context: 512,
    };
    Plan {
        seed,
        writing_steps: 12,
        answering_steps: 4,
        polishing_steps: 2,
        batch_tokens: 512,
        shape,
        ..Plan::default()
    }
}

fn short(seed: u64) -> Trained {
    train(&corpus(), &plan(seed), |_, _| ()).expect("training works")
}

fn bits(trained: &Trained) -> Vec<u32> {
    let weights = trained.network.weights().values();
    weights
        .flat_map(|weight| {
            let values = weight.flatten_all().and_then(|flat| flat.to_vec1::<f32>());
            values.expect("a weight is f32").into_iter().map(f32::to_bits)
        })
        .collect()
}

#[test]
fn seed_reproduces_tokenizer_and_weights_bit_by_bit() {
    let (once, again, other) = (short(7), short(7), short(8));
    let json = |trained: &Trained| trained.vocabulary.to_json().expect("a tokenizer is JSON");
    assert_eq!(json(&once), json(&again));
    assert!(bits(&once) == bits(&again), "two runs with seed 7 differ");
    assert!(bits(&once) != bits(&other), "seeds 7 and 8 gave the same weights");
}

#[test]
fn later_stages_continue_from_the_first_stages_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = plan(7);
    let first_stage = Plan { answering_steps: 0, polishing_steps: 0, ..plan };
    let first = train(&corpus(), &first_stage, |_, _| ()).expect("training works");
    write_checkpoint(folder.path(), &first.network, &first.vocabulary).expect("it is written");
    let weights = folder.path().join("model.safetensors");
    let both = train_from(&weights, &corpus(), &plan, |_, _| ()).expect("training works");
    assert!(bits(&both) == bits(&short(7)), "training in two runs gave other weights");
}

#[test]
fn training_lowers_the_loss() {
    let plan = Plan { writing_steps: 60, answering_steps: 0, polishing_steps: 0, ..plan(7) };
    let losses = train(&corpus(), &plan, |_, _| ()).expect("training works").losses;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < first - 0.5, "the loss went from {first} to {last}");
}

#[test]
fn serving_decoder_matches_the_trained_network() {
    let trained = short(7);
    let folder = tempfile::tempdir().expect("a folder");
    write_checkpoint(folder.path(), &trained.network, &trained.vocabulary).expect("it is written");
    let source = Source::Directory(folder.path().to_owned());
    let tokenizer = Tokenizer::load(&source).expect("the tokenizer loads");
    let tokens = tokenizer.encode("What is a prefix cache?\nA prefix cache keeps", true).expect("encodes");
    assert_eq!(tokens[0], BEGIN);
    let model = Model::load(&source, Some(DType::F32)).expect("the model loads");
    let options = ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: BLOCK,
        total_blocks: LONGEST / BLOCK,
        max_running: 1,
        max_seq_len: 512,
        prompt_cache_entries: 1,
        threads: 1,
    };
    let mut executor = model.executor(options).expect("an executor");
    let trained_logits = trained.network.logits(&tokens, 1).expect("a forward pass");
    for count in [1, 2, tokens.len()] {
        let batch = single_row(&tokens[..count], 0, Some(LogitsSlot(0)));
        executor.execute(&batch, &mut StepOutput::default()).expect("the model computes");
        let served = executor.kept_logits(LogitsSlot(0)).expect("the logits were kept");
        let row = trained_logits.get(count - 1).and_then(|row| row.to_vec1::<f32>());
        let difference = relative_difference(served, &row.expect("a row of logits"));
        assert!(difference < 1e-4, "after {count} tokens the logits differ by {difference}");
    }
}

fn relative_difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let square =
        |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
    square(&mut got.iter().zip(want).map(|(a, b)| a - b)) / square(&mut want.iter().copied())
}
