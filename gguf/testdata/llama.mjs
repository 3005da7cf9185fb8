// Usage: node llama.mjs JOBS, in a folder with the packages node-llama-cpp and @huggingface/tokenizers.
//
// JOBS is a JSON array of objects {file, tokens, steps, folder, texts}. For each of them llama.cpp loads the GGUF file on
// the CPU, with keys and values in float32. Prints a JSON array of objects: logits [tokens][vocabulary] after each of the
// tokens, generated, the steps tokens that are most likely after them, and of each of the texts encoded, llama.cpp's
// tokens, and wanted, those of Hugging Face's library with the tokenizer in folder.
import fs from 'node:fs';
import { Tokenizer } from '@huggingface/tokenizers';
import { getLlama, LlamaLogLevel } from 'node-llama-cpp';

const read = (path) => JSON.parse(fs.readFileSync(path));
const best = (row) => row.indexOf(Math.max(...row));
const llama = await getLlama({ gpu: false, build: 'never', logLevel: LlamaLogLevel.error });
const results = [];
for (const { file, tokens, steps, folder, texts } of read(process.argv[2])) {
  const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 });
  const context = await model.createContext({
    contextSize: 128, batchSize: 128, threads: 1, flashAttention: false,
    experimentalKvCacheKeyType: 'F32', experimentalKvCacheValueType: 'F32',
  });
  const sequence = context.getSequence();
  const logitsAfter = async (ids) => {
    const options = { generateNext: { logits: true, options: { temperature: 0 } } };
    const outputs = await sequence.controlledEvaluate(ids.map((id) => [id, options]));
    return outputs.map((output) => [...output.next.logits].sort((a, b) => a[0] - b[0]).map((pair) => pair[1]));
  };
  const logits = await logitsAfter(tokens);
  const generated = steps ? [best(logits.at(-1))] : [];
  while (generated.length < steps) generated.push(best((await logitsAfter([generated.at(-1)]))[0]));
  const tokenizer = new Tokenizer(read(folder + '/tokenizer.json'), read(folder + '/tokenizer_config.json'));
  results.push({
    logits, generated,
    encoded: texts.map((text) => model.tokenize(text, true)),
    wanted: texts.map((text) => tokenizer.encode(text, { add_special_tokens: false }).ids),
  });
  await model.dispose();
}
console.log(JSON.stringify(results));
