//! Turns topics into rows of tokens with loss weights.
//!
//! Half of the examples are plain (`question`, newline, `answer`), as a bare completion prompt
//! looks; half are conversations with special tokens, as the chat template writes them. Rows hold
//! several examples one after the other, so the model also learns to answer after other text.

use anyhow::Result;

use super::tokenizer::{ASSISTANT, BEGIN, END, SYSTEM, USER, Vocabulary};
use super::wording;
use super::{Corpus, Random};

/// Low, because the model need not produce questions.
const QUESTION_WEIGHT: f32 = 0.1;

/// The first tokens of an answer determine which answer it is.
const DECIDING_TOKENS: usize = 10;

/// Weight of an answer's other tokens while the model learns to choose the answer.
const FOLLOWING_WEIGHT: f32 = 0.2;

/// How examples become rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lesson {
    /// Rows full of examples, all tokens of an answer weighted equally: learns the text.
    Writing,
    /// Rows full of examples, with more weight on the start of each answer.
    Conversing,
    /// One example per row, truncated at the row's end, with more weight on the start of its answer: learns which
    /// answer belongs to which question.
    Answering,
    /// Rows full of examples, all tokens of an answer weighted equally: combines both.
    Polishing,
}

/// `rows` x `length` tokens, the next token of each, and its weight in the loss.
pub struct Batch {
    /// Number of rows.
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Row after row.
    pub inputs: Vec<u32>,
    /// The token after each input.
    pub targets: Vec<u32>,
    /// Weight of each target.
    pub weights: Vec<f32>,
}

/// A topic gets an extra turn per this many wordings; the topic of unknown questions has the most.
const WORDINGS_PER_DRAW: usize = 10;

/// An endless stream of batches that goes through all topics before it repeats any.
pub struct Examples<'a> {
    corpus: &'a Corpus,
    vocabulary: &'a Vocabulary,
    random: Random,
    order: Vec<usize>,
    lesson: Lesson,
}

impl<'a> Examples<'a> {
    /// A stream determined by the corpus, the vocabulary and `seed`.
    #[must_use]
    pub fn new(corpus: &'a Corpus, vocabulary: &'a Vocabulary, seed: u64) -> Self {
        Self { corpus, vocabulary, random: Random::new(seed), order: Vec::new(), lesson: Lesson::Writing }
    }

    /// The next `rows` rows of `length` tokens.
    ///
    /// # Errors
    /// What the tokenizer library reports.
    pub fn batch(&mut self, lesson: Lesson, rows: usize, length: usize) -> Result<Batch> {
        self.lesson = lesson;
        let mut batch = Batch { rows, length, inputs: Vec::new(), targets: Vec::new(), weights: Vec::new() };
        for _ in 0..rows {
            let mut row = Row::default();
            while row.tokens.len() <= length {
                if lesson == Lesson::Answering && !row.tokens.is_empty() {
                    row.push(&vec![END; length + 1 - row.tokens.len()], 0.0);
                    break;
                }
                if self.random.chance(50) {
                    self.plain(&mut row)?;
                } else {
                    self.conversation(&mut row)?;
                }
            }
            batch.inputs.extend(&row.tokens[..length]);
            batch.targets.extend(&row.tokens[1..=length]);
            batch.weights.extend(&row.weights[1..=length]);
        }
        Ok(batch)
    }

    fn plain(&mut self, row: &mut Row) -> Result<()> {
        let (question, answer) = self.pair();
        row.push(&[BEGIN], QUESTION_WEIGHT);
        row.push(&self.vocabulary.encode(&question)?, QUESTION_WEIGHT);
        self.answer(&format!("\n{answer}"), row)?;
        Ok(())
    }

    fn conversation(&mut self, row: &mut Row) -> Result<()> {
        row.push(&[BEGIN], QUESTION_WEIGHT);
        if self.random.chance(25) {
            let message = wording::system_message(&mut self.random);
            row.push(&[SYSTEM], QUESTION_WEIGHT);
            row.push(&self.vocabulary.encode(message)?, QUESTION_WEIGHT);
            row.push(&[END], QUESTION_WEIGHT);
        }
        for _ in 0..1 + self.random.below(3) {
            let (question, answer) = self.pair();
            row.push(&[USER], QUESTION_WEIGHT);
            row.push(&self.vocabulary.encode(&question)?, QUESTION_WEIGHT);
            row.push(&[END], QUESTION_WEIGHT);
            row.push(&[ASSISTANT], 1.0);
            self.answer(answer, row)?;
            if self.lesson == Lesson::Answering {
                break;
            }
        }
        Ok(())
    }

    fn answer(&self, answer: &str, row: &mut Row) -> Result<()> {
        let mut tokens = self.vocabulary.encode(answer)?;
        tokens.push(END);
        let deciding = match self.lesson {
            Lesson::Writing | Lesson::Polishing => tokens.len(),
            Lesson::Conversing | Lesson::Answering => DECIDING_TOKENS.min(tokens.len()),
        };
        row.push(&tokens[..deciding], 1.0);
        row.push(&tokens[deciding..], FOLLOWING_WEIGHT);
        Ok(())
    }

    fn pair(&mut self) -> (String, &'a str) {
        if self.order.is_empty() {
            for (at, entry) in self.corpus.entries.iter().enumerate() {
                let wordings = entry.names.len() + entry.questions.len();
                self.order.extend(std::iter::repeat_n(at, 1 + wordings / WORDINGS_PER_DRAW));
            }
            self.random.shuffle(&mut self.order);
        }
        let entry = &self.corpus.entries[self.order.pop().expect("filled above")];
        let question = match self.lesson {
            Lesson::Writing => wording::question(entry, &mut self.random),
            _ => wording::strange_question(entry, &mut self.random),
        };
        (question, &entry.answer)
    }
}

#[derive(Default)]
struct Row {
    tokens: Vec<u32>,
    weights: Vec<f32>,
}

impl Row {
    fn push(&mut self, tokens: &[u32], weight: f32) {
        self.tokens.extend(tokens);
        self.weights.resize(self.tokens.len(), weight);
    }
}
