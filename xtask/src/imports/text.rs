//! What a source file says of modules and imports: a reader of words, not of Rust.

/// A path of names, such as `crate::a::b`; a glob ends with `*`.
pub type Names = Vec<String>;

/// A `use` of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// What is imported.
    pub path: Names,
    /// The name it has here.
    pub name: String,
    /// It is `pub`, in whatever measure.
    pub public: bool,
}

/// A module as its text has it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// `mod x;`.
    pub files: Vec<String>,
    /// `mod x { … }`.
    pub inline: Vec<(String, Module)>,
    /// `use`s, a group taken apart.
    pub imports: Vec<Import>,
    /// Other paths of two names and more.
    pub paths: Vec<Names>,
    /// Paths that a macro goes on with, as `crate::$module`; what it is given is among the words.
    pub open: Vec<Names>,
    /// Names outside `use`s.
    pub words: Vec<String>,
}

/// Reads a file; test code (`#[cfg(test)]`) is left out.
pub fn read(text: &str) -> Module {
    let words = words(text);
    let mut reader = Reader {
        words: &words,
        at: 0,
    };
    reader.module()
}

/// The words of a text: names, `::`, and single signs. Comments, strings, characters and numbers
/// are none.
fn words(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        if rest.starts_with("//") {
            length = rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            length = block(rest);
        } else if let Some(raw) = raw_string(rest) {
            length = raw;
        } else if first == '"' || rest.starts_with("b\"") || rest.starts_with("c\"") {
            length = string(rest);
        } else if first == '\'' || rest.starts_with("b'") {
            length = character(rest);
        } else if first.is_alphanumeric() || first == '_' {
            let end = |c: char| !c.is_alphanumeric() && c != '_';
            length = rest.find(end).unwrap_or(rest.len());
            if !first.is_ascii_digit() {
                out.push(&rest[..length]);
            }
        } else if rest.starts_with("::") {
            length = 2;
            out.push("::");
        } else if !first.is_whitespace() {
            out.push(&rest[..length]);
        }
        rest = &rest[length..];
    }
    out
}

/// Length of a block comment, with those in it.
fn block(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match text.as_bytes()[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of a string with a quote somewhere at its head.
fn string(text: &str) -> usize {
    let mut at = text.find('"').map_or(text.len(), |quote| quote + 1);
    let bytes = text.as_bytes();
    while at < bytes.len() && bytes[at] != b'"' {
        at += 1 + usize::from(bytes[at] == b'\\');
    }
    (at + 1).min(bytes.len())
}

/// Length of `r"…"`, `r#"…"#`, with `b` or `c` before it; `None` if it is none.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix(['b', 'c']).unwrap_or(text);
    let body = body.strip_prefix('r')?;
    let marks = body.len() - body.trim_start_matches('#').len();
    let body = body[marks..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    let inside = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(text.len() - body.len() + inside)
}

/// Length of a character; of the quote alone if it is a lifetime's.
fn character(text: &str) -> usize {
    let start = text.find('\'').map_or(0, |quote| quote + 1);
    let body = &text[start..];
    let Some(first) = body.chars().next() else {
        return start;
    };
    if first == '\\' {
        // What is escaped may be a quote itself.
        let end = body.get(2..).and_then(|b| b.find('\''));
        return end.map_or(text.len(), |end| start + 2 + end + 1);
    }
    match body[first.len_utf8()..].starts_with('\'') {
        true => start + first.len_utf8() + 1,
        false => start,
    }
}

struct Reader<'a> {
    words: &'a [&'a str],
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self, ahead: usize) -> &'a str {
        self.words.get(self.at + ahead).copied().unwrap_or("")
    }

    fn done(&self) -> bool {
        self.at >= self.words.len()
    }

    /// Up to the brace that closes the module, or the file's end.
    fn module(&mut self) -> Module {
        let mut out = Module::default();
        let mut depth = 0;
        let mut public = false;
        while !self.done() {
            match self.peek(0) {
                "#" => {
                    if self.attribute() {
                        self.item();
                    }
                    continue;
                }
                "{" => depth += 1,
                "}" if depth == 0 => {
                    self.at += 1;
                    return out;
                }
                "}" => depth -= 1,
                "pub" => {
                    self.visibility();
                    public = true;
                    continue;
                }
                "mod" if is_name(self.peek(1)) && self.peek(2) == ";" => {
                    out.files.push(self.peek(1).into());
                    self.at += 2;
                }
                "mod" if is_name(self.peek(1)) && self.peek(2) == "{" => {
                    let name = self.peek(1).to_string();
                    self.at += 3;
                    let inside = self.module();
                    out.inline.push((name, inside));
                    public = false;
                    continue;
                }
                "use" => {
                    self.at += 1;
                    self.tree(&mut Vec::new(), public, &mut out.imports);
                }
                word if is_name(word) => {
                    self.path(&mut out);
                    public = false;
                    continue;
                }
                _ => {}
            }
            public = false;
            self.at += 1;
        }
        out
    }

    /// Passes an attribute; whether what it belongs to is for tests alone.
    fn attribute(&mut self) -> bool {
        self.at += 1;
        self.at += usize::from(self.peek(0) == "!");
        let start = self.at;
        self.group();
        let inside = &self.words[start..self.at];
        let all = inside.windows(3).any(|w| w == ["all", "(", "test"]);
        inside.starts_with(&["[", "cfg", "("]) && (inside.get(3) == Some(&"test") || all)
    }

    /// Passes a pair of brackets with all that is in it, if there is one.
    fn group(&mut self) {
        let mut depth = 0;
        while !self.done() {
            match self.peek(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 && !matches!(self.peek(0), ")" | "]" | "}") {
                return;
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Passes an item, or a statement, or a field.
    fn item(&mut self) {
        while !self.done() {
            match self.peek(0) {
                "#" => {
                    self.attribute();
                }
                "{" => return self.group(),
                "(" | "[" => self.group(),
                "}" => return,
                ";" => {
                    self.at += 1;
                    return;
                }
                _ => self.at += 1,
            }
        }
    }

    /// Passes `pub`, with what it is restricted to.
    fn visibility(&mut self) {
        self.at += 1;
        let restricted = matches!(self.peek(1), "crate" | "super" | "self" | "in");
        if self.peek(0) == "(" && restricted {
            self.group();
        }
    }

    /// A `use`'s tree below `head`, up to `;`, `,` or a closing brace.
    fn tree(&mut self, head: &mut Names, public: bool, out: &mut Vec<Import>) {
        let depth = head.len();
        loop {
            match self.peek(0) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !self.done() && self.peek(0) != "}" {
                        self.tree(head, public, out);
                        self.at += usize::from(self.peek(0) == ",");
                    }
                    self.at += 1;
                    break;
                }
                word if is_name(word) || word == "*" => {
                    head.push(word.into());
                    self.at += 1;
                    if self.peek(0) == "::" {
                        continue;
                    }
                    let mut name = word;
                    if self.peek(0) == "as" {
                        name = self.peek(1);
                        self.at += 2;
                    }
                    if word == "self" && head.len() > 1 {
                        head.pop();
                        name = if name == "self" { "" } else { name };
                    }
                    let last = head.last().cloned().unwrap_or_default();
                    out.push(Import {
                        path: head.clone(),
                        name: if name.is_empty() { last } else { name.into() },
                        public,
                    });
                    break;
                }
                _ => break,
            }
        }
        head.truncate(depth);
    }

    /// A name, or several with `::` between them.
    fn path(&mut self, out: &mut Module) {
        let mut names = vec![self.peek(0).to_string()];
        self.at += 1;
        while self.peek(0) == "::" && is_name(self.peek(1)) {
            names.push(self.peek(1).into());
            self.at += 2;
        }
        out.words.push(names[0].clone());
        if self.peek(0) == "::" && self.peek(1) == "$" {
            out.open.push(names.clone());
        }
        if names.len() > 1 {
            out.paths.push(names);
        }
    }
}

fn is_name(word: &str) -> bool {
    let first = word.chars().next();
    first.is_some_and(|c| c.is_alphabetic() || c == '_')
}
