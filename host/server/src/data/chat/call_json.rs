//! Reads one call, a JSON object, character by character, and reports its name and arguments as soon as they
//! arrive.
//!
//! This is not a JSON parser: it only finds where values begin and end, for which strings, escapes and
//! brackets suffice. Arguments are passed on as the model wrote them.

/// Arguments of a call that has none, as JSON.
const NO_ARGUMENTS: &str = "{}";

/// A part of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The function's name. Reported first.
    Name(String),
    /// More of the arguments: JSON text.
    Arguments(String),
}

/// A call that is being read.
pub struct CallJson {
    /// The key of the arguments.
    arguments: &'static str,
    /// Functions that may be called; `None` for any.
    names: Option<Vec<String>>,
    seen: String,
    place: Place,
    key: String,
    value: String,
    scan: Scan,
    name: Option<String>,
    /// Arguments that precede the name.
    early: String,
    /// Whether any arguments were reported.
    has_arguments: bool,
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

/// The position inside a value.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl CallJson {
    /// A call whose arguments are at the key `arguments`.
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
        }
    }

    /// Whether the function's name was reported.
    pub fn has_begun(&self) -> bool {
        self.name.is_some()
    }

    /// Whether the object is complete and was a call.
    pub fn is_done(&self) -> bool {
        self.place == Place::Done
    }

    /// Whether the text is not a call, or not JSON.
    pub fn is_broken(&self) -> bool {
        self.place == Place::Broken
    }

    /// Removes and returns the text so far, if no call has begun.
    pub fn take_seen(&mut self) -> String {
        std::mem::take(&mut self.seen)
    }

    /// Reads text up to the end of the object. Returns the text after it.
    pub fn push(&mut self, text: &str, found: &mut Vec<Found>) -> String {
        for (at, letter) in text.char_indices() {
            if self.name.is_none() {
                self.seen.push(letter);
            }
            self.step(letter, found);
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
                // The end of the object, after a number or a literal.
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

    /// Ends a value.
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
            // Some models write the arguments as a string of JSON, and an empty one for a function without
            // parameters.
            let plain = serde_json::from_str::<String>(&value).unwrap_or(value);
            let none = ["", "null"].contains(&plain.trim());
            self.tell(if none { NO_ARGUMENTS.to_owned() } else { plain }, found);
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
            self.has_arguments = true;
            found.push(Found::Arguments(arguments));
        }
    }

    /// Reports the part of an argument object that has arrived.
    fn flush(&mut self, found: &mut Vec<Found>) {
        let inside = self.place == Place::Value && self.scan.depth > 0;
        if inside && self.is_arguments() && self.name.is_some() {
            let value = std::mem::take(&mut self.value);
            self.tell(value, found);
        }
    }

    /// Ends the object.
    fn close(&mut self, found: &mut Vec<Found>) -> Place {
        if self.name.is_none() {
            return Place::Broken;
        }
        // Clients parse the arguments as JSON, so a call without any gets an empty object.
        if !self.has_arguments {
            self.tell(NO_ARGUMENTS.to_owned(), found);
        }
        Place::Done
    }
}
