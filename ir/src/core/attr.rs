//! Attributes: the compile-time constants of a node.

/// One attribute value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// An integer (also booleans, as 0 and 1).
    Int(i64),
    /// A real number.
    Float(f64),
    /// Text: einsum specs, dimension names.
    Str(String),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of real numbers.
    Floats(Vec<f64>),
}

/// Attributes by name, in the order they were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(pub Vec<(String, Attr)>);

impl Attrs {
    /// No attributes.
    pub fn new() -> Attrs {
        Attrs::default()
    }

    /// These attributes plus one more.
    pub fn with(mut self, name: &str, value: Attr) -> Attrs {
        self.0.push((name.to_string(), value));
        self
    }

    /// Plus an integer.
    pub fn int(self, name: &str, value: i64) -> Attrs {
        self.with(name, Attr::Int(value))
    }

    /// Plus a real number.
    pub fn float(self, name: &str, value: f64) -> Attrs {
        self.with(name, Attr::Float(value))
    }

    /// Plus a text.
    pub fn text(self, name: &str, value: impl Into<String>) -> Attrs {
        self.with(name, Attr::Str(value.into()))
    }

    /// Plus a list of integers.
    pub fn ints(self, name: &str, value: impl IntoIterator<Item = usize>) -> Attrs {
        self.with(name, Attr::Ints(value.into_iter().map(|v| v as i64).collect()))
    }

    /// Plus a list of real numbers.
    pub fn floats(self, name: &str, value: Vec<f64>) -> Attrs {
        self.with(name, Attr::Floats(value))
    }

    /// The attribute of this name.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, a)| a)
    }

    /// An integer, or an error that names the attribute.
    pub fn get_int(&self, name: &str) -> Result<i64, String> {
        match self.get(name) {
            Some(Attr::Int(v)) => Ok(*v),
            other => Err(mismatch(name, "an integer", other)),
        }
    }

    /// A size (an integer above zero).
    pub fn get_size(&self, name: &str) -> Result<usize, String> {
        let v = self.get_int(name)?;
        usize::try_from(v)
            .ok()
            .filter(|v| *v > 0)
            .ok_or_else(|| format!("attribute {name} is {v}; it must be at least 1"))
    }

    /// A real number; integers are accepted.
    pub fn get_float(&self, name: &str) -> Result<f64, String> {
        match self.get(name) {
            Some(Attr::Float(v)) => Ok(*v),
            Some(Attr::Int(v)) => Ok(*v as f64),
            other => Err(mismatch(name, "a number", other)),
        }
    }

    /// A text.
    pub fn get_text(&self, name: &str) -> Result<&str, String> {
        match self.get(name) {
            Some(Attr::Str(v)) => Ok(v),
            other => Err(mismatch(name, "a text in quotes", other)),
        }
    }

    /// A list of sizes; absent means empty.
    pub fn get_sizes(&self, name: &str) -> Result<Vec<usize>, String> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Attr::Ints(v)) => v
                .iter()
                .map(|x| {
                    usize::try_from(*x)
                        .ok()
                        .filter(|x| *x > 0)
                        .ok_or_else(|| format!("attribute {name} holds {x}; sizes must be at least 1"))
                })
                .collect(),
            other => Err(mismatch(name, "a list of integers", other)),
        }
    }

    /// A list of real numbers; a list of integers is accepted.
    pub fn get_floats(&self, name: &str) -> Result<Vec<f64>, String> {
        match self.get(name) {
            Some(Attr::Floats(v)) => Ok(v.clone()),
            Some(Attr::Ints(v)) => Ok(v.iter().map(|x| *x as f64).collect()),
            other => Err(mismatch(name, "a list of numbers", other)),
        }
    }
}

fn mismatch(name: &str, want: &str, got: Option<&Attr>) -> String {
    match got {
        None => format!("attribute {name} is missing; it must be {want}"),
        Some(a) => format!("attribute {name} is {a:?}; it must be {want}"),
    }
}
