package launcher

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/printer"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

func TestSplitter(t *testing.T) {
	long := strings.Repeat("a", maxLine)
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"one\ntwo\n", []string{"one", "two"}},
		{"one\n\ntwo", []string{"one", "", "two"}},
		{"dos\r\n\r\nend\r\n", []string{"dos", "", "end"}},
		{"\r 10%\r 20%\r100%\ndone\n", []string{" 10%\r", " 20%\r", "100%", "done"}},
		{"10%\r20%\rdone\n30%\r", []string{"10%\r", "20%\r", "done", "30%"}},
		{long + "\n", []string{long}},
		{long + "b\n", []string{long + "...", "b"}},
		{long + long, []string{long + "...", long}},
		{long + long + "b\r\n", []string{long + "...", long + "...", "b"}},
	} {
		// The lines do not depend on how the bytes are divided into reads.
		for seed := range uint64(8) {
			reads := rand.New(rand.NewPCG(seed, 0))
			var s splitter
			var got []string
			emit := func(line []byte, end ending) {
				got = append(got, string(line)+[...]string{newline: "", redraw: "\r", cut: "..."}[end])
			}
			for rest := []byte(test.text); len(rest) > 0; {
				n := len(rest)
				if seed > 0 {
					n = min(n, 1+reads.IntN(max(4, len(test.text)/4)))
				}
				s.feed(rest[:n], emit)
				rest = rest[n:]
			}
			s.flush(emit)
			if !slices.Equal(got, test.want) {
				t.Fatalf("seed %d: lines of %.40q... are %.200q", seed, test.text, got)
			}
		}
	}
}

func TestTail(t *testing.T) {
	add := func(tl *tail, from, to int) {
		for i := from; i < to; i++ {
			tl.add(fmt.Appendf(nil, "line %d", i))
		}
	}
	var tl tail
	add(&tl, 0, 3)
	if got := tl.lines(); len(got) != 3 || got[0] != "line 0" {
		t.Errorf("got %q", got)
	}
	if got := tl.whole(); !slices.Equal(got, tl.lines()) {
		t.Errorf("got %q of three lines", got)
	}
	add(&tl, 3, tailLines+2)
	if got := tl.whole(); len(got) != tailLines+2 || got[1] != "line 1" || got[2] != "line 2" {
		t.Errorf("got %q of %d lines", got, tailLines+2)
	}
	add(&tl, tailLines+2, 100)
	if got := tl.whole(); got[2] != "line 2" || got[3] != "... 77 more ..." || got[4] != "line 80" {
		t.Errorf("got %q of 100 lines", got)
	}
	if got := tl.lines(); len(got) != tailLines || got[0] != "line 80" || got[19] != "line 99" {
		t.Errorf("got %q", got)
	}
	if tl.crash != nil {
		t.Errorf("crash %q in lines that hold none", tl.crash)
	}
	tl.add([]byte("log: panic: not at the start"))
	if tl.crash != nil {
		t.Errorf("crash %q in a line that only mentions one", tl.crash)
	}
	// A crash begins with its reason. The stacks of all goroutines follow.
	tl.add([]byte("fatal error: unexpected signal during runtime execution"))
	tl.add([]byte("[signal SIGSEGV: segmentation violation]"))
	add(&tl, 100, 300)
	if len(tl.crash) != crashLines || !strings.HasPrefix(tl.crash[0], "fatal error: ") || tl.crash[2] != "line 100" {
		t.Errorf("got %q", tl.crash)
	}
	tl.add([]byte(strings.Repeat("x", 10*tailLineMax)))
	if got := tl.lines(); len(got[tailLines-1]) != tailLineMax {
		t.Errorf("a line of %d bytes is kept", len(got[tailLines-1]))
	}
}

func TestParseStreamMap(t *testing.T) {
	for text, want := range map[string][]streamSet{
		"0":             {0, 0, 0},
		"3":             {3, 3, 3},
		"0:3,1:1":       {3, 1, 0},
		"2:2":           {0, 0, 2},
		"1:1, 12:3":     {0, 1, 0},
		"0:0,1:0,100:0": {0, 0, 0},
	} {
		m, err := ParseStreamMap(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for local, streams := range want {
			if m.of(local) != streams {
				t.Errorf("%q of %d is %d, want %d", text, local, m.of(local), streams)
			}
		}
		if again, err := ParseStreamMap(m.String()); err != nil || again.String() != m.String() {
			t.Errorf("%q reads back as %v, %v", m, again, err)
		}
	}
	if m, _ := ParseStreamMap("1:1,12:3"); m.of(12) != stdoutStream|stderrStream || m.Highest() != 12 || !m.any() {
		t.Errorf("got %v", m)
	}
	for _, text := range []string{"", "4", "-1", "x", "0:", ":1", "0:4", "0:3,", "0:1,0:2", "-1:3", "0:1:2", "0;1:2"} {
		if m, err := ParseStreamMap(text); err == nil {
			t.Errorf("%q is accepted as %v", text, m)
		}
	}
}

// On a terminal, the next line replaces a line that ended with a lone "\r", also in the last lines for a report. Elsewhere
// each is a line.
func TestLinesThatAreRedrawn(t *testing.T) {
	for redraws, want := range map[bool]string{
		false: "0> 10%\n0> 20%\n0> done\n",
		true:  "0> 10%\r" + printer.EraseLine + "0> 20%\r" + printer.EraseLine + "0> done\n",
	} {
		s := stream{shown: &printer.Output{}, redraws: redraws, prefix: "0> ", tail: &tail{}}
		s.lines.feed([]byte("10%\r20%\rdone\n"), s.line)
		if got := string(s.out); got != want {
			t.Errorf("redrawn in place %v: %q, want %q", redraws, got, want)
		}
		if got := len(s.tail.lines()); got != strings.Count(want, "\n") {
			t.Errorf("redrawn in place %v: %d last lines for %q", redraws, got, want)
		}
	}
}

// The prefix of a line can say on which node and in which attempt the worker wrote it.
func TestLinePrefix(t *testing.T) {
	s := spawner{
		cfg:   &Config{LinePrefix: "${role_name} ${rank} ${local_rank} ${node} ${host} ${attempt} ${other}> ", Role: "trainer"},
		round: &rendezvous.Round{Node: 3, Nodes: 4},
	}
	p := &process{Worker: Worker{Rank: 7, LocalRank: 1, Attempt: 2}}
	if got, want := s.prefix(p), "trainer 7 1 3 "+hostname()+" 2 ${other}> "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	j := shell(1, `echo hello; exit $((1 - TORCHELASTIC_RESTART_COUNT))`)
	j.cfg.LinePrefix, j.cfg.MaxRestarts = "${attempt}/${node}: ", 1
	if _, err := j.run(t); err != nil {
		t.Fatal(err)
	}
	if got, want := j.out.String(), "0/0: hello\n1/0: hello\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
