package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/generate"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/hf/chat"
	"github.com/goddp/goddp/hf/tokenizer"
	"github.com/goddp/goddp/internal/terminal"
	"github.com/goddp/goddp/lora"
)

// talk is the state of "goddp generate".
type talk struct {
	options   generate.Options
	stop      []string
	positions int

	tok      *tokenizer.Tokenizer
	template *chat.Template // nil: the model continues texts
	messages []chat.Message // so far
	g        *generate.Generator
}

// generateText implements "goddp generate".
func generateText(args []string) error {
	var t talk
	var adapters, system string
	var raw bool
	flags := newFlags("generate")
	flags.StringVar(&adapters, "adapters", "", "`folder` of PEFT's adapters for the model")
	flags.StringVar(&system, "system", "", "`text` of the system's message, the first one of a chat")
	flags.BoolVar(&raw, "raw", false, "continue the prompt as it is, without the model's chat template")
	flags.IntVar(&t.options.MaxTokens, "max-tokens", 512, "the maximum number of new tokens")
	flags.IntVar(&t.positions, "context", 4096, "the maximum number of tokens of a chat, prompts and answers")
	flags.StringArrayVar(&t.stop, "stop", nil, "end before this `text`; may be repeated")
	flags.Float64Var(&t.options.Temperature, "temperature", 0, "the logits are divided by it; 0 chooses the most probable token")
	flags.IntVar(&t.options.TopK, "top-k", 0, "choose from this number of the most probable tokens")
	flags.Float64Var(&t.options.TopP, "top-p", 0, "choose from the fewest most probable tokens with this probability together")
	flags.Float64Var(&t.options.RepetitionPenalty, "repetition-penalty", 1,
		"positive logits of earlier tokens are divided by it, negative ones multiplied")
	flags.Uint64Var(&t.options.Seed, "seed", 0, "seed of the choices")
	if err := parse(flags, args, `Answer a prompt with a model of the Hugging Face hub, or with one that was tuned. If the
folder has a chat template, the prompt is what a user says, otherwise a text to be continued.

Usage:
  goddp generate [flags] MODEL [PROMPT]

Without PROMPT, each line of the standard input is a prompt, and a chat remembers those
before it. The model is in bfloat16 on a GPU, and in float32 on the CPU.

Examples:
  goddp generate tuned 'What is DDP?'
  goddp generate SmolLM2-135M-Instruct --adapters tuned

Flags:
%s
Exit codes: 0 answered; 1 MODEL cannot be read, or a prompt is too long; 2 usage.
`); err != nil {
		return err
	}
	if flags.NArg() < 1 || flags.NArg() > 2 {
		return usagef("want the folder of a model, and perhaps a prompt in quotes, got %d arguments", flags.NArg())
	}
	switch o := t.options; {
	case o.MaxTokens < 1 || t.positions < 2:
		return usagef("--max-tokens %d and --context %d: want at least 1 and 2", o.MaxTokens, t.positions)
	case !(o.Temperature >= 0 && o.TopK >= 0 && o.TopP >= 0 && o.TopP <= 1 && o.RepetitionPenalty > 0):
		return usagef("--temperature %v, --top-k %d, --top-p %v, --repetition-penalty %v: want at least 0, at least 0, 0 to 1 and above 0",
			o.Temperature, o.TopK, o.TopP, o.RepetitionPenalty)
	case (o.TopK > 0 || o.TopP > 0) && o.Temperature == 0:
		return usagef("--top-k %d and --top-p %v have no effect with --temperature 0: want one above 0, for example 1", o.TopK, o.TopP)
	case slices.Contains(t.stop, ""):
		return usagef("--stop '': want a text")
	}
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return err
	}
	err = t.load(dev, flags.Arg(0), adapters, system, raw)
	if err == nil && flags.NArg() == 2 {
		err = t.answer(context.Background(), flags.Arg(1))
	} else if err == nil {
		err = t.answerLines(context.Background(), os.Stdin)
	}
	return errors.Join(err, dev.Close())
}

// load reads the model and what belongs to it.
func (t *talk) load(dev device.Device, dir, adapters, system string, raw bool) (err error) {
	if _, err = hf.NewModel(dir, ""); err != nil { // its error says that a folder has adapters alone
		return err
	}
	if t.tok, err = tokenizer.Load(dir); err != nil {
		return err
	}
	if t.template, err = chat.Load(dir); err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return err
	}
	t.options.Stop = chat.Stop(t.tok, t.template)
	if raw {
		t.template = nil
	}
	if system != "" {
		if t.template == nil {
			return usagef("--system: want a model with a chat template, and not --raw")
		}
		t.messages = append(t.messages, chat.Text("system", system))
	}
	o := &hf.LoadOptions{}
	if dev.Type() == device.CUDA {
		o.DType = device.BFloat16
	}
	f, err := hf.Load(dir, dev, o)
	if err != nil {
		return err
	}
	if adapters != "" {
		a, err := lora.Load(f.Model, adapters)
		if err != nil {
			return err
		}
		if err := a.Merge(); err != nil {
			return err
		}
	}
	t.positions = min(t.positions, f.Model.MaxPositions())
	t.g, err = generate.New(f.Model, 1, t.positions)
	return err
}

// answerLines answers each line of in. On a terminal the chat goes on without a line that has no answer.
func (t *talk) answerLines(ctx context.Context, in *os.File) error {
	isTerminal := terminal.Columns(in) > 0
	prompt := func() {
		if isTerminal {
			fmt.Fprint(os.Stderr, "> ")
		}
	}
	lines := bufio.NewReader(in)
	for prompt(); ; prompt() {
		line, err := lines.ReadString('\n')
		if text := strings.TrimSpace(line); text != "" {
			before := t.messages
			if err := t.answer(ctx, text); err != nil && !isTerminal {
				return err
			} else if err != nil {
				fmt.Fprintln(os.Stderr, "goddp generate:", err)
				t.messages = before
			}
		}
		if errors.Is(err, io.EOF) {
			if isTerminal {
				fmt.Fprintln(os.Stderr) // behind the prompt
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// answer prints the answer to a text. In a chat it becomes a part of what later answers are based on.
func (t *talk) answer(ctx context.Context, text string) error {
	var tokens []int
	var err error
	o, last, n := t.options, -1, 0
	o.OnToken = func(_, id int) bool {
		last, n = id, n+1
		return true
	}
	if t.template == nil {
		tokens, err = chat.Prompt(t.tok, nil, text)
	} else {
		t.messages = append(t.messages, chat.Text("user", text))
		var rendered string
		rendered, err = t.template.Render(t.messages, &chat.Options{AddGenerationPrompt: true})
		tokens = t.tok.Encode(rendered, &tokenizer.EncodeOptions{NoSpecialTokens: true})
	}
	if err != nil {
		return err
	}
	if len(tokens) < 1 || len(tokens) >= t.positions {
		return fmt.Errorf("the prompt has %d tokens with those before, want 1 to %d (--context, and at most what the model has)",
			len(tokens), t.positions-1)
	}
	var answer strings.Builder
	pieces := t.tok.Stream(&tokenizer.DecodeOptions{SkipSpecialTokens: true})
	err = t.g.Text(ctx, tokens, pieces, t.stop, &o, func(text string) {
		answer.WriteString(text)
		fmt.Fprint(stdout, text)
	})
	fmt.Fprintln(stdout)
	isFull := n == o.MaxTokens || len(tokens)+n > t.positions
	if err == nil && t.template != nil && isFull && !slices.Contains(o.Stop, last) {
		fmt.Fprintf(os.Stderr, "goddp generate: the answer ends after %d tokens, %d with those before (--max-tokens, --context)\n",
			n, len(tokens)+n)
	}
	t.messages = append(t.messages, chat.Text("assistant", answer.String()))
	return err
}
