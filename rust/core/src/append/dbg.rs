use super::*;
use crate::Overrides;
#[test]
fn dbg_spaces() {
    let json = std::fs::read_to_string("/work/shared/data/tokenizers/qwen3/tokenizer.json").unwrap();
    let t = Tokenizer::from_json(&json, &Overrides::default()).unwrap();
    let mut open = OpenText::new(Edge::Start);
    let mut ids: Vec<u32> = vec![];
    for i in 0..3000 {
        let part=[Part::content(" ")];
        let tail = open.encode_with(&t, &ids, &part).unwrap();
        if i>2990 { println!("{i} kept {} of {} walked {:?} bytes {}", tail.kept, ids.len(), open.trace.walked(), open.bytes());
          for back in [8usize, 16, 20] { if back<ids.len() { let k=open.token_apart(ids.len()-back); println!("  {k:?}");
            if let Some(k)=k { let at=open.spans[k].start; let near=with(open.text.after(0),&part);
             println!("   at {at} touches {} restart {:?} stay {}", t.added_touches(&near.text,at), open.trace.restart(&t,&near.text,0,at), t.stay_apart(ids[k-1], ids[k])); } } } }
        open.push(&part, Provenance::Env);
        let s = open.settle(&t, &tail);
        ids.truncate(tail.kept); ids.extend(tail.encoded.ids); ids.drain(..s.tokens);
    }
}
#[test]
fn dbg_b64() {
    let json = std::fs::read_to_string("/work/shared/data/tokenizers/qwen3/tokenizer.json").unwrap();
    let t = Tokenizer::from_json(&json, &Overrides::default()).unwrap();
    for text in ["abcDEF+gh12/aK9", "aaa1", "a+b", "a/bc", "ab/1", "+1", "/+", "1a"] { 
      for (i, _) in text.char_indices().skip(1) { print!("{:?}", (text.split_at(i), t.last_anchor(&format!("{}",text)[..i+1]))); } println!(); }
}
