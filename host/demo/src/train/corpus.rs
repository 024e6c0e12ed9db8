//! The training text: topics with their names, questions and one answer each.
//!
//! The format is plain text that a person can write quickly:
//!
//! ```text
//! # a prefix cache | prefix caching | + cached prefixes
//! ? Why is a repeated system prompt fast?
//! The answer, on one or several lines, up to the next blank line.
//! ```
//!
//! `#` gives names that the wording templates are filled with (`+` marks a plural), `?` a question
//! of its own. Either may be missing, not both. One answer per topic: a model this small can say
//! one thing well.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// One topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Noun phrases with their articles; a plural starts with `+ `.
    pub names: Vec<String>,
    /// Questions that belong to this answer, besides those made from the names.
    pub questions: Vec<String>,
    /// What the model shall say.
    pub answer: String,
}

/// All topics, in the order of the files.
#[derive(Clone, Debug, Default)]
pub struct Corpus {
    /// The topics.
    pub entries: Vec<Entry>,
}

impl Corpus {
    /// Reads every `.txt` of a folder, in the order of their names.
    ///
    /// # Errors
    /// A file that can't be read, or a topic without a question or an answer; says which.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .with_context(|| format!("reading the corpus folder {}", folder.display()))?
            .map(|file| Ok(file?.path()))
            .collect::<std::io::Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
        files.sort();
        let mut corpus = Self::default();
        for file in files {
            let text = std::fs::read_to_string(&file)?;
            corpus.add(&text).with_context(|| format!("in {}", file.display()))?;
        }
        ensure!(!corpus.entries.is_empty(), "no topics in {}", folder.display());
        Ok(corpus)
    }

    /// Adds the topics of one file's text.
    ///
    /// # Errors
    /// A topic without a question or an answer; shows its lines.
    pub fn add(&mut self, text: &str) -> Result<()> {
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
            let mut entry = Entry::default();
            for line in paragraph.lines().map(str::trim).filter(|line| !line.is_empty()) {
                if let Some(names) = line.strip_prefix("# ") {
                    entry.names.extend(names.split(" | ").map(|name| name.trim().to_owned()));
                } else if let Some(question) = line.strip_prefix("? ") {
                    entry.questions.push(question.to_owned());
                } else {
                    if !entry.answer.is_empty() {
                        entry.answer.push(' ');
                    }
                    entry.answer.push_str(line);
                }
            }
            if entry.answer.is_empty() || (entry.names.is_empty() && entry.questions.is_empty()) {
                bail!("a topic needs a name or question and an answer: {paragraph:?}");
            }
            self.entries.push(entry);
        }
        Ok(())
    }
}
