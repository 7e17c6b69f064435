//! The parts of a name between its colons, taken one by one.

use super::SpecError;

/// `[:N][:key=value]…[:flag]…` behind an organization's name.
pub(super) struct Parts<'a> {
    name: &'static str,
    want: &'static str,
    rest: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    /// Those of organization `name`, of which `want` says what it takes.
    pub(super) fn new(name: &'static str, want: &'static str, rest: Vec<&'a str>) -> Parts<'a> {
        Parts { name, want, rest }
    }

    /// The error that `part` is not understood.
    pub(super) fn refuse(&self, part: &str) -> SpecError {
        SpecError::Parameter {
            name: self.name,
            part: part.to_string(),
            want: self.want,
        }
    }

    /// Takes the first part if it is the bare word `word`.
    pub(super) fn flag(&mut self, word: &str) -> bool {
        match self.rest.iter().position(|p| *p == word) {
            Some(i) => {
                self.rest.remove(i);
                true
            }
            None => false,
        }
    }

    /// Takes a leading number from 1 to `max`.
    pub(super) fn number(&mut self, max: u16) -> Result<Option<u16>, SpecError> {
        match self.rest.first() {
            Some(n) if n.bytes().all(|b| b.is_ascii_digit()) && !n.is_empty() => {
                let n = self.rest.remove(0);
                self.within(n, 1, max).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Takes `key=value`.
    pub(super) fn value(&mut self, key: &str) -> Option<&'a str> {
        let found = |p: &&str| p.split_once('=').is_some_and(|(k, _)| k == key);
        let i = self.rest.iter().position(found)?;
        self.rest.remove(i).split_once('=').map(|(_, v)| v)
    }

    /// Takes `key=number`, from `min` to `max`.
    pub(super) fn count(
        &mut self,
        key: &str,
        min: u16,
        max: u16,
    ) -> Result<Option<u16>, SpecError> {
        self.value(key)
            .map(|v| self.within(v, min, max))
            .transpose()
    }

    fn within(&self, text: &str, min: u16, max: u16) -> Result<u16, SpecError> {
        let n = text.parse().ok().filter(|n| (min..=max).contains(n));
        n.ok_or_else(|| self.refuse(text))
    }

    /// Takes `key=word`, one of `words`, whose value follows.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, SpecError> {
        let Some(v) = self.value(key) else {
            return Ok(None);
        };
        let found = words.iter().find(|(w, _)| *w == v);
        found.map(|(_, t)| Some(*t)).ok_or_else(|| self.refuse(v))
    }

    /// Takes `key=on` or `key=off`.
    pub(super) fn switch(&mut self, key: &str) -> Result<Option<bool>, SpecError> {
        self.choice(key, &[("on", true), ("off", false)])
    }

    /// Nothing may be left.
    pub(super) fn end<T>(self, value: T) -> Result<T, SpecError> {
        match self.rest.first() {
            None => Ok(value),
            Some(_) => Err(self.refuse(&self.rest.join(":"))),
        }
    }
}
