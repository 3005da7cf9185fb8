package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/internal/daemon"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// short is the campaign that fits in a test. It begins with the scenario that takes longest, so that others run beside it.
var short = []scenario{
	{cell: cell{Fault: suspend, Mode: async}, Setup: golaunch, World: 3, Round: 2, Call: 2, Jitter: 5 * time.Millisecond},
	{cell: cell{Fault: kill, Mode: async}, Setup: alone, World: 3, Victim: 1, Round: 2, Call: 1, Stuck: true},
	{cell: cell{Fault: fullDisk, Mode: async}, Then: stop, Setup: golaunch, World: 2, Victim: 1, Round: 3},
	{cell: cell{Fault: delay, Mode: blocking}, Setup: golaunch, World: 3, TCP: true, Victim: 2, Round: 2},
	{cell: cell{Fault: delay, Mode: none}, Setup: alone, World: 2, Round: 3, Call: 2, Name: 1},
	{cell: cell{Fault: skip, Mode: cleanUp}, Setup: alone, World: 3, Victim: 2, Round: 4, Call: 1},
	{cell: cell{Fault: overlap, Mode: blocking}, Setup: alone, World: 3, Victim: 1, Round: 2, Call: 1},
	{cell: cell{Fault: exit, Mode: cleanUp}, Setup: golaunch, World: 3, Victim: 1, Round: 1, Call: 2},
	{cell: cell{Fault: store, Mode: async}, Then: kill, Setup: separateStore, World: 3, Round: 2, Call: 1},
	{cell: cell{Fault: store, Mode: async}, Then: stop, Setup: separateStore, World: 4, TCP: true, Victim: 2, Round: 6, Call: 1, Stuck: true},
	{cell: cell{Fault: garbage, Mode: blocking}, Setup: golaunch, World: 2, TCP: true},
	{cell: cell{Fault: launcher, Mode: cleanUp}, Setup: golaunch, World: 2, Round: 5},
	{cell: cell{Fault: stale, Mode: blocking}, Setup: alone, World: 3, Victim: 1, Round: 3},
	{cell: cell{Fault: daemons, Mode: async}, Then: reaper, Setup: golaunch, World: 2, Round: 2, Daemon: daemon.Mainless},
	{cell: cell{Fault: stranger, Mode: async}, Setup: golaunch, World: 2},
	{cell: cell{Fault: stranger, Mode: async}, Setup: alone, World: 3},
	{cell: cell{Fault: twoJobs, Mode: async}, Setup: alone, World: 3, Pick: 1},
}

// patient are the terms of TestShortCampaign. On a busy machine a rank may take longer than the usual timeout to come to a call.
var patient = terms{Device: usual.Device, Timeout: 5 * time.Second}

// caught is the name of a mutant whose jobs leave processes running.
const caught = "golaunch does not look for orphans"

func TestShortCampaign(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux's /proc")
	}
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin, err := build(t.Context(), root, filepath.Join(dir, "goddp"), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := campaign{jobs: 4, slack: 10 * time.Second, out: t.Output(), noDisk: canFill(), noUser: canIntrude(), kept: filepath.Join(dir, "kept")}
	for i := range short {
		short[i].terms, short[i].K = patient, i
	}
	for _, r := range c.run(t.Context(), short, bin) {
		switch {
		case r.skipped != "":
			t.Logf("skipped: %v: %s", &r.scenario, r.skipped)
		case !r.ok():
			t.Errorf("%v: %v", &r.scenario, &r.verdict)
		case r.toEnd == 0:
			t.Errorf("%v did not run", &r.scenario)
		default:
			if out, err := os.ReadFile(filepath.Join(c.kept, r.folder(), "output.txt")); err != nil || !strings.Contains(string(out), "joined") {
				t.Errorf("%v left the output %q, %v", &r.scenario, out, err)
			}
		}
	}

	i := slices.IndexFunc(mutants, func(m mutant) bool { return m.name == caught })
	c.terms = patient
	mutated, err := build(t.Context(), root, filepath.Join(dir, "mutant"), &mutants[i])
	if err != nil {
		t.Fatal(err)
	}
	if by, because, err := c.catch(t.Context(), mutated, bin, &mutants[i]); err != nil || by == nil || !strings.Contains(because, "left over") {
		t.Errorf("the mutant %q is caught by %v, as %q, %v, want a finding about processes left over", caught, by, because, err)
	}
}

// TestEachMutantCompiles applies each mutant, compiles the package that it changes, and finds a
// scenario in which it shows.
func TestEachMutantCompiles(t *testing.T) {
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range mutants {
		m := &mutants[i]
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			overlay, err := m.overlay(root, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			compile := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "./"+filepath.Dir(m.file))
			compile.Dir = root
			if out, err := compile.CombinedOutput(); err != nil {
				t.Errorf("%s of %s does not compile: %v\n%s", m.function, m.file, err, out)
			}
			shows := false
			for k := range perCell * len(cells) {
				s := draw(1, k, usual)
				shows = shows || m.shows(&s)
			}
			if !shows {
				t.Error("the mutant shows in no scenario")
			}
		})
	}
}

func TestErrorOfMutantNamesFunction(t *testing.T) {
	dir := t.TempDir()
	source := "package p\n\ntype T struct{}\n\nfunc (*T) M() { f(); f(); g() }\n\nfunc M() { g() }\n"
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ function, old, want string }{
		{"T.M", "g()", ""},
		{"T.M", "f()", `function T.M in p.go contains "f()" 2 times, want once`},
		{"M", "f()", `function M in p.go contains "f()" 0 times, want once`},
		{"T.N", "f()", "there is no function T.N in "},
	} {
		m := mutant{file: "p.go", function: test.function, old: test.old, new: "h()"}
		got, err := m.apply(dir)
		switch {
		case test.want == "" && (err != nil || got != strings.Replace(source, test.old, "h()", 1)):
			t.Errorf("%s of %s becomes %q, %v", test.old, test.function, got, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s of %s: error %v, want %q", test.old, test.function, err, test.want)
		}
	}
}

// TestResultsPageHasTodaysTables checks that the tables of docs/results/chaos.md have the form that
// the campaign prints, with the faults, modes, mutants and scenarios of today.
func TestResultsPageHasTodaysTables(t *testing.T) {
	page, err := os.ReadFile("../../docs/results/chaos.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rows, ok := strings.Cut(string(page), "\n"+tableHead)
	if !ok {
		t.Fatalf("the page does not hold the head of the table:\n%s", tableHead)
	}
	scenarios, rows, ok := strings.Cut(rows, mutantTableHead)
	if !ok {
		t.Fatalf("the page does not hold the head of the mutants' table:\n%s", mutantTableHead)
	}
	lines := strings.Split(scenarios, "\n")
	for i, c := range cells {
		if want := fmt.Sprintf("| %s | %s | ", c.Fault, c.Mode); !strings.HasPrefix(lines[i], want) {
			t.Errorf("row %d of the table is %q, want %q", i, lines[i], want)
		}
	}
	lines = strings.Split(rows, "\n")
	for i, m := range mutants {
		mutant, caught, _ := strings.Cut(strings.TrimPrefix(lines[i], "| "), " | ")
		if mutant != m.name {
			t.Errorf("row %d of the mutants' table is %q, want %q", i, mutant, m.name)
			continue
		}
		var k int
		fmt.Sscanf(caught, "#%d", &k)
		if s := draw(1, k, usual); !strings.HasPrefix(caught, s.summary()+" | ") || !m.shows(&s) {
			t.Errorf("mutant %q is caught by %q, want a scenario in which it shows, such as %q", m.name, caught, s.summary())
		}
	}
}

// TestDrawDependsOnSeedAndNumberAlone draws each scenario twice.
func TestDrawDependsOnSeedAndNumberAlone(t *testing.T) {
	seedsDiffer := false
	for k := range 2 * len(cells) {
		a, b, c := draw(7, k, usual), draw(7, k, usual), draw(8, k, usual)
		if a.String() != b.String() || a.Jitter != b.Jitter || a.Noise != b.Noise {
			t.Errorf("one draw returns %v, another %v", &a, &b)
		}
		seedsDiffer = seedsDiffer || a.String() != c.String()
		if a.Fault != cells[k%len(cells)].Fault || !slices.Contains(a.setups, a.Setup) || a.Victim >= a.World {
			t.Errorf("%+v", a)
		}
	}
	if !seedsDiffer {
		t.Error("two seeds draw the same scenarios")
	}
}

// TestFaultAndModeFlagsChooseScenarios checks that the flags leave scenarios out and change none.
func TestFaultAndModeFlagsChooseScenarios(t *testing.T) {
	c := campaign{terms: terms{Device: cuda, Ranks: 2, Timeout: time.Second}, seed: 7}
	chosen, err := c.draw(5*len(cells), -1, "skip,resize", "blocking")
	if err != nil || len(chosen) != 10 {
		t.Errorf("%d scenarios, %v, want 2 faults in a mode, 5 times each", len(chosen), err)
	}
	for _, s := range chosen {
		again := draw(7, s.K, c.terms)
		if s.Fault != skip && s.Fault != resize || s.Mode != blocking || s.World != 2 || s.String() != again.String() {
			t.Errorf("%v was chosen", &s)
		}
		if !s.isBlind() || s.Call > 1 {
			t.Errorf("%v: NCCL may run it without a failure", &s)
		}
	}
	for _, flags := range []struct{ faults, modes string }{{"skip,resiz", ""}, {"", "blockin"}, {"launcher", "blocking"}} {
		if got, err := c.draw(3, -1, flags.faults, flags.modes); err == nil {
			t.Errorf("%q: %d scenarios, and no error", flags, len(got))
		}
	}
}

// TestProcessesAreFoundByMarkOrProgram starts a process that removed its mark from its environment.
func TestProcessesAreFoundByMarkOrProgram(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux's /proc")
	}
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("there is no sleep(1) to start")
	}
	copied := filepath.Join(dir, "sleep")
	data, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, data, 0o755); err != nil {
		t.Fatal(err)
	}
	marked, unmarked := exec.Command(sleep, "60"), exec.Command(copied, "60")
	marked.Env, unmarked.Env = []string{markVar + "=" + dir}, []string{"X=1"}
	for _, cmd := range []*exec.Cmd{marked, unmarked} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
	}
	if found := processes(dir); len(found) != 2 {
		t.Errorf("found %v, want pids %d and %d", found, marked.Process.Pid, unmarked.Process.Pid)
	}
	killProcesses(dir)
	if left := processes(dir); len(left) > 0 {
		t.Errorf("killProcesses left %v", left)
	}
}

// TestListenersAreFound listens by TCP, by TCP over IPv6, and on an abstract unix socket.
func TestListenersAreFound(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux's /proc")
	}
	for _, a := range []address{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", "@chaos test " + t.Name()}} {
		l, err := net.Listen(a.network, strings.ReplaceAll(a.addr, " ", "-"))
		if err != nil {
			t.Logf("%v: %v", a, err)
			continue
		}
		defer l.Close()
		want := address{a.network, l.Addr().String()}
		if found := listeners([]process{{pid: os.Getpid()}}); !slices.Contains(found, want) {
			t.Errorf("found %v, not %v", found, want)
		}
	}
}
