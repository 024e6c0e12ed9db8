//! Results of the fault machine: as text, of which stdout gets each part at once, as JSON, as CSV with a row for each
//! result, and as a page with a section for each.

use std::collections::BTreeMap;

use infer_sim::fuzz::{Outcome, Reached, Summary, Violation};
use infer_sim::report::{Figures, Section, page};
use serde::{Serialize, Serializer};

use super::super::result::{Format, ResultArgs};
use super::super::{Failure, emit};
use super::quoted;

/// What happened in cases without a violation.
#[derive(Serialize)]
pub struct Counts {
    steps: u64,
    batches: u64,
    /// In hexadecimal.
    fingerprint: String,
    #[serde(serialize_with = "by_name")]
    reached: Reached,
}

/// A violation.
#[derive(Serialize)]
pub struct Found {
    /// The seed of its case, unless the case is from a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    step: u64,
    place: String,
    message: String,
}

/// The smallest case found with a seed's violation.
#[derive(Serialize)]
pub struct Minimized {
    pub file: String,
    pub operations: usize,
    #[serde(flatten)]
    pub violation: Found,
}

/// Result of running seeds.
#[derive(Serialize)]
pub struct Hunted {
    /// The first.
    seed: u64,
    /// Those without a violation.
    seeds: u64,
    #[serde(flatten)]
    counts: Counts,
    violation: Option<Found>,
    pub minimized: Option<Minimized>,
    /// How to minimize the case with the violation, as a line of text.
    #[serde(skip)]
    pub advice: String,
}

/// Result of replaying a file: counts, or a violation.
#[derive(Serialize)]
pub struct Replayed {
    file: String,
    #[serde(flatten)]
    counts: Option<Counts>,
    pub violation: Option<Found>,
    /// It as a line of text.
    #[serde(skip)]
    pub text: String,
}

/// What a command tells about results.
pub struct Told<'a> {
    to: &'a ResultArgs,
    /// What stdout hasn't got yet.
    text: String,
}

/// A result as a row of CSV and as a section of the page.
pub struct Row<'a> {
    heading: String,
    notes: String,
    file: Option<&'a str>,
    /// The first seed, and the number of those without a violation.
    seeds: Option<[u64; 2]>,
    counts: Option<&'a Counts>,
    violation: Option<&'a Found>,
    minimized: Option<&'a Minimized>,
}

impl Counts {
    fn new(steps: u64, batches: u64, fingerprint: u64, reached: Reached) -> Self {
        Self { steps, batches, fingerprint: format!("{fingerprint:016x}"), reached }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    fn figures(&self) -> Figures {
        let rows = self.reached.rows().into_iter().map(|(name, count)| (name, count as f64)).collect();
        Figures { title: "what happened", unit: "count", digits: 0, rows }
    }
}

impl Found {
    pub fn new(seed: Option<u64>, violation: &Violation) -> Self {
        let Violation { step, message, place } = violation.clone();
        Self { seed, step, place, message }
    }

    fn text(&self, what: &str) -> String {
        format!("{what}: after step {}: {} ({})\n", self.step, self.message, self.place)
    }
}

impl Minimized {
    pub fn text(&self) -> String {
        let what = format!("minimized to {} operations", self.operations);
        self.violation.text(&what)
            + &format!("to replay it: infer sim fuzz --replay {}\n", quoted(&self.file))
    }
}

impl Hunted {
    pub fn new(seed: u64, summary: &Summary) -> Self {
        let Summary { seeds, steps, batches, fingerprint, reached, violation, .. } = summary;
        Self {
            seed,
            seeds: *seeds,
            counts: Counts::new(*steps, *batches, *fingerprint, reached.clone()),
            violation: violation.as_ref().map(|(seed, violation)| Found::new(Some(*seed), violation)),
            minimized: None,
            advice: String::new(),
        }
    }

    /// Without the minimized case, which takes longer.
    pub fn text(&self) -> String {
        format!("{}\n{}{}", self.summary(), self.counts.reached, self.violated())
    }

    fn summary(&self) -> String {
        let Self { seed, seeds, counts, .. } = self;
        let Counts { steps, batches, fingerprint, .. } = counts;
        format!(
            "seeds from {seed}: {seeds} without a violation, {steps} steps, {batches} batches, \
             fingerprint {fingerprint}"
        )
    }

    fn violated(&self) -> String {
        let text = |found: &Found| found.text(&format!("seed {}", found.seed.unwrap_or_default()));
        self.violation.as_ref().map(text).unwrap_or_default()
    }

    pub fn row(&self) -> Row<'_> {
        let minimized = self.minimized.as_ref();
        Row {
            heading: self.summary(),
            notes: self.violated() + &minimized.map(Minimized::text).unwrap_or_default() + &self.advice,
            file: None,
            seeds: Some([self.seed, self.seeds]),
            counts: Some(&self.counts),
            violation: self.violation.as_ref(),
            minimized,
        }
    }
}

impl Replayed {
    pub fn new(file: String, outcome: Result<Outcome, Violation>) -> Self {
        match outcome {
            Ok(Outcome { steps, batches, fingerprint, reached }) => {
                let counts = Counts::new(steps, batches, fingerprint, reached);
                let print = &counts.fingerprint;
                let text = format!("{file}: no violation in {steps} steps, fingerprint {print}\n");
                Self { file, counts: Some(counts), violation: None, text }
            }
            Err(violation) => {
                let found = Found::new(None, &violation);
                let text = found.text(&file);
                Self { file, counts: None, violation: Some(found), text }
            }
        }
    }

    pub fn row(&self) -> Row<'_> {
        Row {
            heading: self.text.clone(),
            notes: String::new(),
            file: Some(&self.file),
            seeds: None,
            counts: self.counts.as_ref(),
            violation: self.violation.as_ref(),
            minimized: None,
        }
    }
}

impl<'a> Told<'a> {
    pub fn new(to: &'a ResultArgs) -> Self {
        Self { to, text: String::new() }
    }

    /// Tells a part of the text; stdout gets it at once, because the next part may take long.
    pub fn say(&mut self, part: &str) -> Result<(), Failure> {
        if let (Format::Text, None) = (self.to.format, &self.to.out) {
            return emit(None, part);
        }
        self.text += part;
        Ok(())
    }

    /// Writes the whole result.
    pub fn end(self, result: &impl Serialize, rows: &[Row<'_>]) -> Result<(), Failure> {
        let text = match self.to.format {
            Format::Text => self.text,
            Format::Json => serde_json::to_string_pretty(result).map_err(Failure::failed)? + "\n",
            Format::Csv => csv(rows),
            Format::Html => page("infer sim fuzz", &rows.iter().map(Row::section).collect::<Vec<_>>()),
        };
        emit(self.to.out.as_deref(), &text)
    }
}

impl Row<'_> {
    fn section(&self) -> Section {
        Section {
            heading: self.heading.trim_end().to_owned(),
            notes: self.notes.lines().map(str::to_owned).collect(),
            tables: self.counts.map(Counts::figures).into_iter().collect(),
            charts: Vec::new(),
        }
    }
}

/// A column's name and its value, if a row has one.
type Column = (&'static str, fn(&Row<'_>) -> Option<String>);

/// All but the columns of what was reached, which follow. Names are part of the interface.
const COLUMNS: &[Column] = &[
    ("file", |row| row.file.map(str::to_owned)),
    ("seed", |row| row.seeds.map(|[first, _]| first.to_string())),
    ("seeds", |row| row.seeds.map(|[_, passed]| passed.to_string())),
    ("steps", |row| row.counts.map(|counts| counts.steps.to_string())),
    ("batches", |row| row.counts.map(|counts| counts.batches.to_string())),
    ("fingerprint", |row| row.counts.map(|counts| counts.fingerprint.clone())),
    ("violation_seed", |row| Some(row.violation?.seed?.to_string())),
    ("violation_step", |row| row.violation.map(|found| found.step.to_string())),
    ("violation_place", |row| row.violation.map(|found| found.place.clone())),
    ("violation_message", |row| row.violation.map(|found| found.message.clone())),
    ("minimized_file", |row| row.minimized.map(|case| case.file.clone())),
    ("minimized_operations", |row| row.minimized.map(|case| case.operations.to_string())),
    ("minimized_step", |row| row.minimized.map(|case| case.violation.step.to_string())),
    ("minimized_place", |row| row.minimized.map(|case| case.violation.place.clone())),
    ("minimized_message", |row| row.minimized.map(|case| case.violation.message.clone())),
];

/// A row for each result. What has no value is empty.
fn csv(rows: &[Row<'_>]) -> String {
    let mut text = ::csv::Writer::from_writer(Vec::new());
    let reached: Vec<String> = Reached::default().rows().into_iter().map(|(name, _)| name).collect();
    let own = COLUMNS.iter().map(|(name, _)| *name);
    text.write_record(own.chain(reached.iter().map(String::as_str))).expect("memory takes it");
    for row in rows {
        let counts: Vec<String> = match row.counts {
            Some(counts) => counts.reached.rows().iter().map(|(_, count)| count.to_string()).collect(),
            None => vec![String::new(); reached.len()],
        };
        let own = COLUMNS.iter().map(|(_, read)| read(row).unwrap_or_default());
        text.write_record(own.chain(counts)).expect("memory takes it");
    }
    String::from_utf8(text.into_inner().expect("memory takes it")).expect("all fields are text")
}

/// As JSON has it.
fn by_name<S: Serializer>(reached: &Reached, serializer: S) -> Result<S::Ok, S::Error> {
    reached.rows().into_iter().collect::<BTreeMap<_, _>>().serialize(serializer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn violation() -> Violation {
        Violation { step: 9, message: "a block is lost".to_owned(), place: "pool.rs:7".to_owned() }
    }

    /// Seeds that pass, and those up to one that doesn't.
    fn hunted() -> [Hunted; 2] {
        let passed = Summary {
            seeds: 2,
            steps: 300,
            batches: 40,
            fingerprint: 0xab,
            reached: Reached { tokens: 5, ..Reached::default() },
            ..Summary::default()
        };
        let failed = Summary { violation: Some((19, violation())), ..passed.clone() };
        [passed, failed].map(|summary| Hunted::new(17, &summary))
    }

    fn minimized() -> Minimized {
        let violation = Found::new(None, &violation());
        Minimized { file: "my case.json".to_owned(), operations: 3, violation }
    }

    /// Files that pass, and one that doesn't.
    fn replayed() -> [Replayed; 2] {
        let reached = Reached { started: 6, ..Reached::default() };
        let passed = Outcome { steps: 70, batches: 8, fingerprint: 0xcd, reached };
        let (one, other) = ("a, b.json".to_owned(), "<c>.json".to_owned());
        [Replayed::new(one, Ok(passed)), Replayed::new(other, Err(violation()))]
    }

    /// The rows as maps from the names of the columns.
    fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
        ::csv::Reader::from_reader(text.as_bytes()).deserialize().map(|row| row.unwrap()).collect()
    }

    #[test]
    fn json_has_what_was_reached_and_the_violation() {
        let value = |hunted: &Hunted| serde_json::to_value(hunted).unwrap();
        let [passed, mut failed] = hunted();
        let shown = value(&passed);
        assert_eq!((&shown["seed"], &shown["seeds"], &shown["steps"]), (&json!(17), &json!(2), &json!(300)));
        assert_eq!((&shown["batches"], &shown["fingerprint"]), (&json!(40), &json!("00000000000000ab")));
        assert_eq!((&shown["reached"]["tokens"], &shown["violation"]), (&json!(5), &json!(null)));
        let what = json!({"seed": 19, "step": 9, "place": "pool.rs:7", "message": "a block is lost"});
        assert_eq!((&value(&failed)["violation"], &value(&failed)["minimized"]), (&what, &json!(null)));
        let before = value(&failed);
        failed.advice = "to minimize it: infer sim fuzz\n".to_owned();
        assert_eq!(value(&failed), before, "advice is for readers");

        let small = minimized();
        let text = "minimized to 3 operations: after step 9: a block is lost (pool.rs:7)\n\
                    to replay it: infer sim fuzz --replay 'my case.json'\n";
        assert_eq!(small.text(), text);
        failed.minimized = Some(small);
        let small = &value(&failed)["minimized"];
        assert_eq!((&small["file"], &small["operations"]), (&json!("my case.json"), &json!(3)));
        assert_eq!((&small["place"], &small["message"]), (&json!("pool.rs:7"), &json!("a block is lost")));
        assert!(failed.text().ends_with("seed 19: after step 9: a block is lost (pool.rs:7)\n"));
    }

    #[test]
    fn csv_has_a_row_for_each_result_and_the_same_columns_for_all() {
        let [passed, mut failed] = hunted();
        failed.minimized = Some(minimized());
        let [one, other] = replayed();
        let text = csv(&[passed.row(), failed.row(), one.row(), other.row()]);
        let head = "file,seed,seeds,steps,batches,fingerprint,violation_seed,violation_step,violation_place,\
                    violation_message,minimized_file,minimized_operations,minimized_step,minimized_place,\
                    minimized_message,requests,";
        assert!(text.starts_with(head) && text.contains(",refused: rate,"), "{text}");
        let rows = rows(&text);
        for (name, values) in [
            ("file", ["", "", "a, b.json", "<c>.json"]),
            ("seed", ["17", "17", "", ""]),
            ("seeds", ["2", "2", "", ""]),
            ("steps", ["300", "300", "70", ""]),
            ("batches", ["40", "40", "8", ""]),
            ("fingerprint", ["00000000000000ab", "00000000000000ab", "00000000000000cd", ""]),
            ("violation_seed", ["", "19", "", ""]),
            ("violation_step", ["", "9", "", "9"]),
            ("violation_place", ["", "pool.rs:7", "", "pool.rs:7"]),
            ("violation_message", ["", "a block is lost", "", "a block is lost"]),
            ("minimized_file", ["", "my case.json", "", ""]),
            ("minimized_operations", ["", "3", "", ""]),
            ("minimized_step", ["", "9", "", ""]),
            ("minimized_place", ["", "pool.rs:7", "", ""]),
            ("minimized_message", ["", "a block is lost", "", ""]),
            ("tokens", ["5", "5", "0", ""]),
            ("started", ["0", "0", "6", ""]),
            ("refused: rate", ["0", "0", "0", ""]),
        ] {
            assert_eq!(rows.iter().map(|row| &row[name][..]).collect::<Vec<_>>(), values, "{name}");
        }
    }

    #[test]
    fn page_has_a_section_for_each_result() {
        let [_, mut failed] = hunted();
        failed.minimized = Some(minimized());
        let [one, other] = replayed();
        let sections = [failed.row(), one.row(), other.row()].map(|row| row.section());
        let page = page("infer sim fuzz", &sections);
        for says in [
            "<h2>seeds from 17: 2 without a violation, 300 steps, 40 batches, fingerprint 00000000000000ab</h2>",
            "<p>seed 19: after step 9: a block is lost (pool.rs:7)</p><p>minimized to 3 operations: after",
            "<p>to replay it: infer sim fuzz --replay 'my case.json'</p>",
            "<td>tokens</td><td>5</td>",
            "<h2>a, b.json: no violation in 70 steps, fingerprint 00000000000000cd</h2>",
            "<td>started</td><td>6</td>",
            "<h2>&lt;c&gt;.json: after step 9: a block is lost (pool.rs:7)</h2></body>",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
    }
}
