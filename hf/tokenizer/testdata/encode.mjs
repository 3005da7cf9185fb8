// Usage: node encode.mjs TOKENIZER TEXTS OUT, in a folder with the package @huggingface/tokenizers.
//
// Encodes the strings of the JSON array TEXTS with the tokenizer of the folder TOKENIZER, and writes for each text to
// OUT, as int32: the number of tokens and the tokens. Prints the CPU seconds that encoding took and the decoded texts.
import fs from 'node:fs';
import { Tokenizer } from '@huggingface/tokenizers';

const [dir, textsPath, out] = process.argv.slice(2);
const read = (file) => JSON.parse(fs.readFileSync(file));
const tokenizer = new Tokenizer(read(dir + '/tokenizer.json'), read(dir + '/tokenizer_config.json'));
const texts = read(textsPath);
const encode = () => texts.map((text) => tokenizer.encode(text, { add_special_tokens: true }).ids);
const few = texts.length <= 10000;
if (few) encode(); // compiles
const start = process.cpuUsage();
const all = encode();
const seconds = process.cpuUsage(start).user / 1e6;
const flat = new Int32Array(all.reduce((n, ids) => n + ids.length + 1, 0));
let at = 0;
for (const ids of all) {
  flat[at++] = ids.length;
  for (const id of ids) flat[at++] = id ?? -1; // a tokenizer without an unknown token
}
fs.writeFileSync(out, flat);
const options = { skip_special_tokens: false, clean_up_tokenization_spaces: false };
const decoded = few ? all.map((ids) => ids.length ? tokenizer.decode(ids, options) : '') : [];
console.log(JSON.stringify({ seconds, decoded }));
