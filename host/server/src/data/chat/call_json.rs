//! Reads one call, a JSON object, letter by letter: its name and its arguments as soon as they are there.
//!
//! Not a JSON parser: it finds where values begin and end, which needs strings, escapes and brackets alone.
//! Arguments pass as they were written.

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The function's name. Comes first.
    Name(String),
    /// More of its arguments.
    Arguments(String),
}

/// One object on its way.
pub struct CallJson {
    /// Key of the arguments.
    arguments: &'static str,
    /// Names that a call may have; `None` for any.
    names: Option<Vec<String>>,
    seen: String,
    place: Place,
    key: String,
    value: String,
    scan: Scan,
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
    /// Some of them were told.
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    BeforeKey,
    Key,
    Colon,
    BeforeValue,
    Value,
    Done,
    Broken,
}

/// Where in a value it stands.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl CallJson {
    /// A call whose arguments stand at a key.
    pub fn new(arguments: &'static str, names: Option<Vec<String>>) -> Self {
        Self {
            arguments,
            names,
            seen: String::new(),
            place: Place::Start,
            key: String::new(),
            value: String::new(),
            scan: Scan::default(),
            name: None,
            early: String::new(),
            has_arguments: false,
            told: false,
        }
    }

    /// Whether the function's name was told.
    pub fn has_begun(&self) -> bool {
        self.name.is_some()
    }

    /// The object is complete and was a call.
    pub fn is_done(&self) -> bool {
        self.place == Place::Done
    }

    /// It is no call, or no JSON.
    pub fn is_broken(&self) -> bool {
        self.place == Place::Broken
    }

    /// Everything taken so far, while no call has begun.
    pub fn take_seen(&mut self) -> String {
        std::mem::take(&mut self.seen)
    }

    /// Takes text up to the object's end; returns what stands behind it.
    pub fn push(&mut self, text: &str, found: &mut Vec<Found>) -> String {
        for (at, letter) in text.char_indices() {
            if self.name.is_none() {
                self.seen.push(letter);
            }
            self.step(letter, found);
            if self.is_broken() && self.has_begun() && !self.told {
                // Clients read arguments as JSON, which nothing isn't.
                self.tell("{}".to_owned(), found);
            }
            if matches!(self.place, Place::Done | Place::Broken) {
                return text[at + letter.len_utf8()..].to_owned();
            }
        }
        self.flush(found);
        String::new()
    }

    fn step(&mut self, letter: char, found: &mut Vec<Found>) {
        let blank = letter.is_ascii_whitespace();
        self.place = match (self.place, letter) {
            (Place::Start, '{') => Place::BeforeKey,
            (Place::BeforeKey, '"') => {
                self.key.clear();
                Place::Key
            }
            (Place::BeforeKey, '}') => self.close(found),
            (Place::BeforeKey, ',') => Place::BeforeKey,
            (Place::Key, '"') => Place::Colon,
            (Place::Key, _) => {
                self.key.push(letter);
                Place::Key
            }
            (Place::Colon, ':') => Place::BeforeValue,
            (Place::Start | Place::BeforeKey | Place::Colon | Place::BeforeValue, _) if blank => self.place,
            (Place::BeforeValue, _) => {
                self.value.clear();
                self.scan = Scan::default();
                self.value_letter(letter, found)
            }
            (Place::Value, _) => self.value_letter(letter, found),
            _ => Place::Broken,
        };
    }

    fn value_letter(&mut self, letter: char, found: &mut Vec<Found>) -> Place {
        let scan = &mut self.scan;
        if scan.in_string {
            self.value.push(letter);
            match letter {
                _ if scan.escaped => scan.escaped = false,
                '\\' => scan.escaped = true,
                '"' => {
                    scan.in_string = false;
                    if scan.depth == 0 {
                        return self.end_value(found);
                    }
                }
                _ => {}
            }
            return Place::Value;
        }
        match letter {
            '"' => scan.in_string = true,
            '{' | '[' => scan.depth += 1,
            '}' | ']' if scan.depth == 0 => {
                // The object's own end, behind a number or a word.
                let place = self.end_value(found);
                return if place == Place::Broken { place } else { self.close(found) };
            }
            ',' if scan.depth == 0 => return self.end_value(found),
            '}' | ']' => {
                scan.depth -= 1;
                if scan.depth == 0 {
                    self.value.push(letter);
                    return self.end_value(found);
                }
            }
            _ => {}
        }
        self.value.push(letter);
        Place::Value
    }

    /// A value is complete.
    fn end_value(&mut self, found: &mut Vec<Found>) -> Place {
        let value = std::mem::take(&mut self.value);
        if self.key == "name" && self.name.is_none() {
            let Ok(name) = serde_json::from_str::<String>(&value) else { return Place::Broken };
            if self.names.as_ref().is_some_and(|names| !names.contains(&name)) {
                return Place::Broken;
            }
            self.name = Some(name.clone());
            found.push(Found::Name(name));
            let early = std::mem::take(&mut self.early);
            self.tell(early, found);
        } else if self.is_arguments() {
            // Some models write the arguments as a string of JSON.
            let plain = serde_json::from_str::<String>(&value).unwrap_or(value);
            self.tell(if plain.trim() == "null" { "{}".to_owned() } else { plain }, found);
            self.has_arguments = true;
        }
        Place::BeforeKey
    }

    fn is_arguments(&self) -> bool {
        self.key == self.arguments || self.key == "arguments" || self.key == "parameters"
    }

    fn tell(&mut self, arguments: String, found: &mut Vec<Found>) {
        if self.name.is_none() {
            self.early.push_str(&arguments);
        } else if !arguments.is_empty() {
            self.told = true;
            found.push(Found::Arguments(arguments));
        }
    }

    /// Arguments that are an object go on as they come.
    fn flush(&mut self, found: &mut Vec<Found>) {
        let inside = self.place == Place::Value && self.scan.depth > 0;
        if inside && self.is_arguments() && self.name.is_some() {
            let value = std::mem::take(&mut self.value);
            self.tell(value, found);
        }
    }

    /// The object ends.
    fn close(&mut self, found: &mut Vec<Found>) -> Place {
        if self.name.is_none() {
            return Place::Broken;
        }
        if !self.has_arguments {
            self.tell("{}".to_owned(), found);
        }
        Place::Done
    }
}
