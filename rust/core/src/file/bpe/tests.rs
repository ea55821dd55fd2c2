use super::*;

impl Bpe {
    /// The parts of a model with nothing strange in it.
    pub fn read(json: &str) -> Self {
        let file = serde_json::from_str(json).expect("a model");
        Self::new(&file).expect("nothing strange")
    }
}
