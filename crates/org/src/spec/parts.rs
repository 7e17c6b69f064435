//! The parts of a name between its colons, taken one by one.

use super::{Family, SpecError};

/// `[:N][:key=value]…[:flag]…` behind an organization's name.
pub struct Parts<'a> {
    name: &'static str,
    takes: &'static str,
    rest: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    /// Those behind the name of an organization of `family`.
    pub fn new(family: &Family, rest: Vec<&'a str>) -> Parts<'a> {
        Parts {
            name: family.name,
            takes: family.takes,
            rest,
        }
    }

    /// The error that `part` is not understood.
    pub fn refuse(&self, part: &str) -> SpecError {
        SpecError::Parameter {
            name: self.name,
            part: part.to_string(),
            takes: self.takes,
        }
    }

    /// Takes the first part if it is the bare word `word`.
    pub fn flag(&mut self, word: &str) -> bool {
        match self.rest.iter().position(|p| *p == word) {
            Some(i) => {
                self.rest.remove(i);
                true
            }
            None => false,
        }
    }

    /// Takes a leading number from 1 to `max`.
    ///
    /// # Errors
    /// It is out of range.
    pub fn number(&mut self, max: u16) -> Result<Option<u16>, SpecError> {
        match self.rest.first() {
            Some(n) if n.bytes().all(|b| b.is_ascii_digit()) && !n.is_empty() => {
                let n = self.rest.remove(0);
                self.within(n, 1, max).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Takes `key=value`.
    pub fn value(&mut self, key: &str) -> Option<&'a str> {
        let found = |p: &&str| p.split_once('=').is_some_and(|(k, _)| k == key);
        let i = self.rest.iter().position(found)?;
        self.rest.remove(i).split_once('=').map(|(_, v)| v)
    }

    /// Takes `key=number`, from `min` to `max`.
    ///
    /// # Errors
    /// It is no number, or out of range.
    pub fn count(&mut self, key: &str, min: u16, max: u16) -> Result<Option<u16>, SpecError> {
        self.value(key)
            .map(|v| self.within(v, min, max))
            .transpose()
    }

    fn within(&self, text: &str, min: u16, max: u16) -> Result<u16, SpecError> {
        let n = text.parse().ok().filter(|n| (min..=max).contains(n));
        n.ok_or_else(|| self.refuse(text))
    }

    /// Takes `key=word`, one of `words`, whose value follows.
    ///
    /// # Errors
    /// It is none of them.
    pub fn choice<T: Copy>(
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
    ///
    /// # Errors
    /// It is neither.
    pub fn switch(&mut self, key: &str) -> Result<Option<bool>, SpecError> {
        self.choice(key, &[("on", true), ("off", false)])
    }

    /// The end: nothing may be left.
    ///
    /// # Errors
    /// Something is.
    pub fn end<T>(self, value: T) -> Result<T, SpecError> {
        match self.rest.first() {
            None => Ok(value),
            Some(_) => Err(self.refuse(&self.rest.join(":"))),
        }
    }
}
