package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/daemon"
	survival "github.com/goddp/goddp/test/survive/job"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// short is the campaign that fits in a test. It begins with the scenario that takes longest, so that others run beside it.
var short = []scenario{
	{cell: cell{Fault: suspend, Mode: async}, Setup: golaunch, World: 3, Round: 2, Call: 2, Jitter: 5 * time.Millisecond},
	{cell: cell{Fault: kill, Mode: async}, Setup: alone, World: 3, Victim: 1, Round: 2, Call: 1, Stuck: true},
	{cell: cell{Fault: fullDisk, Mode: async}, Then: stop, Setup: golaunch, World: 2, Victim: 1, Round: 3},
	{cell: cell{Fault: store, Mode: async}, Then: kill, Setup: separateStore, World: 3, Round: 2, Call: 1},
	{cell: cell{Fault: garbage, Mode: blocking}, Setup: golaunch, World: 2, TCP: true},
	{cell: cell{Fault: daemons, Mode: async}, Then: reaper, Setup: golaunch, World: 2, Round: 2, Daemon: daemon.Mainless},
	{cell: cell{Fault: stranger, Mode: async}, Setup: golaunch, World: 2},
	{cell: cell{Fault: sourceDies, Mode: async}, Setup: golaunch, World: 3, Phase: survival.Backward},
}

// patient are the terms of TestShortCampaign. On a busy machine a rank may take longer than the usual timeout to come to a call.
var patient = terms{Device: usual.Device, Timeout: 5 * time.Second}

// caught is the name of a mutant whose jobs leave processes running.
const caught = "golaunch does not look for orphans"

func TestShortCampaign(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Linux)
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

// Each mutant applies to today's source, and shows in a scenario.
func TestMutantsApply(t *testing.T) {
	testkit.Long(t)
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range mutants {
		m := &mutants[i]
		if _, err := m.apply(root); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		shows := false
		for k := range perCell * len(cells) {
			s := draw(1, k, usual)
			shows = shows || m.shows(&s)
		}
		if !shows {
			t.Errorf("%s shows in no scenario", m.name)
		}
	}
}

// TestDrawDependsOnSeedAndNumberAlone draws each scenario twice.
func TestDrawDependsOnSeedAndNumberAlone(t *testing.T) {
	testkit.Long(t)
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

// TestProcessesAreFoundByMarkOrProgram starts a process that removed its mark from its environment.
func TestProcessesAreFoundByMarkOrProgram(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Linux)
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
