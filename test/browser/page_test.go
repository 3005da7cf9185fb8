package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/goddp/goddp/internal/page"
	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){"worker": work})
}

// pageLine matches the line with which golaunch prints the page's address.
const pageLine = `^golaunch: page: (http://\S+)$`

// commands builds golaunch and goddp, from the module that this one tests, into a folder.
var commands = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "goddp-browser-"); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir, "./cmd/golaunch", "./cmd/goddp")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return dir, nil
})

// command returns the path of golaunch or goddp.
func command(t *testing.T, name string) string {
	t.Helper()
	dir, err := commands()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// start starts a job of 4 workers, and returns it and the URL of its page. The workers compute on the CPU, unless the test emulates
// GPUs.
func start(t *testing.T, flags []string, args ...string) (job *testkit.Process, url string) {
	t.Helper()
	all := append([]string{"--page", "--nproc-per-node", "4"}, flags...)
	cmd := exec.Command(command(t, "golaunch"), append(append(all, os.Args[0]), args...)...)
	cmd.Env = testkit.Env("GODDP_TEST_PROGRAM=worker", "OMP_NUM_THREADS=1", "TMPDIR="+t.TempDir()) // for flight records
	if os.Getenv("FAKEGPU_CONTROL") == "" {
		cmd.Env = append(cmd.Env, "GODDP_DEVICE=cpu")
	}
	job = testkit.Start(t, cmd)
	line := job.Await(pageLine, 1)
	return job, regexp.MustCompile(pageLine).FindStringSubmatch(line.Text)[1]
}

// browser starts Chromium, which loads a page.
func browser(t *testing.T, url string) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.Flag("disable-gpu", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Run(ctx, chromedp.EmulateViewport(1600, 1000), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// await waits until an expression of the page is true.
func await(t *testing.T, ctx context.Context, within time.Duration, expression string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		var is bool
		err := chromedp.Run(ctx, chromedp.Evaluate("Boolean("+expression+")", &is))
		if is {
			return
		}
		if time.Now().After(deadline) {
			var text string
			_ = chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText.slice(0, 2000)`, &text))
			t.Fatalf("after %v: not %s: %v\n%s", within, expression, err, text)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// shoot saves a screenshot of the whole page, if GODDP_SHOTS names a folder.
func shoot(t *testing.T, ctx context.Context, name string, width int64, isDark bool) {
	t.Helper()
	dir := os.Getenv("GODDP_SHOTS")
	if dir == "" {
		return
	}
	mode := "light"
	if isDark {
		mode = "dark"
	}
	var png []byte
	err := chromedp.Run(ctx,
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: mode}}),
		chromedp.EmulateViewport(width, 1000), chromedp.Sleep(2500*time.Millisecond), chromedp.FullScreenshot(&png, 100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+"-"+mode+".png"), png, 0o666); err != nil {
		t.Fatal(err)
	}
}

// loaded is how long a page may take on a busy machine.
const loaded = 20 * time.Second

func TestCurvesMoveAndTheSlowRankIsNamed(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	slow := filepath.Join(t.TempDir(), "slow")
	_, url := start(t, nil, "-slow", "2", "-slow-file", slow)
	ctx := browser(t, url)
	await(t, ctx, loaded, `charts.get("loss")?.data?.[0].length > 3`)
	await(t, ctx, loaded, `charts.get("loss").data[0].at(-1) > 100 && charts.get("time of a step").data[3].at(-1) > 0`)
	await(t, ctx, loaded, `document.querySelector(".plot").dispatchEvent(new KeyboardEvent("keydown", {key: "+", bubbles: true})) && zoom !== null`)
	await(t, ctx, loaded, `document.querySelector(".plot").dispatchEvent(new KeyboardEvent("keydown", {key: "0", bubbles: true})) && zoom === null`)
	await(t, ctx, loaded, `document.querySelector(".plot").getAttribute("aria-label").startsWith("loss: ") && document.getElementById("heat").getAttribute("aria-label").startsWith("Heat map of 4 ranks")`)
	// A filter that nothing matches leaves no panel.
	await(t, ctx, loaded, `($("filter").value = "none", refresh(), $("charts").children.length === 0)`)
	await(t, ctx, loaded, `($("filter").value = "", refresh(), $("charts").children.length > 0)`)
	// The legend has what the bars show.
	await(t, ctx, loaded, `(showRanks({...states[0], parts: [...states[0].parts, "evaluation"]}), $("parts").textContent.includes("data") && !$("parts").textContent.includes("evaluation"))`)
	// The heap moves little, which its axis does not exaggerate. The axis has whole powers of two, and room for its texts.
	await(t, ctx, loaded, `((u) => u.scales.y.max - u.scales.y.min >= 0.09 * u.scales.y.max)(charts.get("heap_bytes").u)`)
	await(t, ctx, loaded, `((s) => s.length > 1 && s.every((v, i) => i === 0 || Number.isInteger(Math.log2(v - s[i - 1]))))(charts.get("heap_bytes").u.axes[1]._splits)`)
	await(t, ctx, loaded, `[...charts.values()].map((c) => c.u.axes[1]).every((a) => a._values.every((text) => 10 + pen.measureText(text).width <= a._size))`)
	var alerts string
	if err := chromedp.Run(ctx, chromedp.Text("#alerts", &alerts, chromedp.ByQuery)); err != nil || strings.Contains(alerts, "rank 2") {
		t.Errorf("before rank 2 is slow: %q, %v", alerts, err)
	}
	if err := os.WriteFile(slow, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, 5*time.Second, `document.getElementById("alerts").textContent.startsWith("Rank 2 is the slowest: data takes ")`)
	await(t, ctx, loaded, `document.getElementById("told").textContent === "Rank 2 is the slowest: data."`)
	if err := chromedp.Run(ctx, chromedp.EmulateViewport(360, 800)); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, loaded, `document.documentElement.scrollWidth <= 360`)
	shoot(t, ctx, "slow-1600", 1600, false)
	shoot(t, ctx, "slow-1600", 1600, true)
	shoot(t, ctx, "slow-360", 360, false)
	shoot(t, ctx, "slow-360", 360, true)
}

// A worker that is killed is the culprit on the page, beside the report. The page that is still open keeps both when golaunch
// has ended.
func TestKilledRankIsTheCulprit(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	job, url := start(t, nil)
	ctx := browser(t, url)
	await(t, ctx, loaded, `states[0]?.ranks?.[3]?.step > 20`)
	var pid int
	if err := chromedp.Run(ctx, chromedp.Evaluate(`states[0].ranks[3].pid`, &pid)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, loaded, `document.getElementById("alerts").textContent === "Rank 3 caused the failure."`)
	await(t, ctx, loaded, `document.getElementById("report").textContent.includes("killed by SIGKILL")`)
	await(t, ctx, loaded, `document.querySelector("tr.culprit").cells[1].textContent === "was killed by SIGKILL (culprit)"`)
	if code := job.Wait(); code != 128+9 {
		t.Errorf("exit code %d", code)
	}
	shoot(t, ctx, "failure-1600", 1600, false)
	shoot(t, ctx, "failure-360", 360, true)
}

// A job that restarts from a checkpoint stays one curve: its steps increase, and reach beyond those before.
func TestResumedRunIsOneCurve(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	dir := t.TempDir()
	fail := filepath.Join(dir, "fail")
	_, url := start(t, []string{"--max-restarts", "1"}, "-fail-file", fail, "-checkpoints", filepath.Join(dir, "checkpoints"))
	ctx := browser(t, url)
	await(t, ctx, loaded, `states[0]?.checkpoint?.step >= 50 && states[0].step > states[0].checkpoint.step + 10`)
	if err := os.WriteFile(fail, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, loaded, `states[0].restarts === 1`)
	await(t, ctx, loaded, `states[0].checkpoint.step >= 200`)
	await(t, ctx, loaded, `charts.get("loss").data[0].at(-1) > 200 && charts.get("loss").data[0].every((x, i, all) => i === 0 || x > all[i - 1])`)
}

// Names and values of a hostile program inject nothing, and are bounded.
func TestHostileNumbers(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	_, url := start(t, nil, "-hostile")
	ctx := browser(t, url)
	await(t, ctx, loaded, `states[0]?.refused > 0`)
	await(t, ctx, loaded, `[...document.querySelectorAll(".chart figcaption")].some((e) => e.textContent.startsWith("<img src=x"))`)
	await(t, ctx, loaded, `states[0].names.length <= 256 && states[0].names.every((n) => n.length <= 128) && document.images.length === 0 && !document.title.includes("injected")`)
	await(t, ctx, loaded, `document.getElementById("alerts").textContent.includes("not a number is not finite")`)
}

// A job that replaces a killed worker stays one curve, and shows the new worker in the place of the old one.
func TestElasticRunIsOneCurve(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	_, url := start(t, []string{"--on-failure", "replace"})
	ctx := browser(t, url)
	await(t, ctx, loaded, `states[0]?.ranks?.[1]?.step > 20`)
	var pid int
	if err := chromedp.Run(ctx, chromedp.Evaluate(`states[0].ranks[1].pid`, &pid)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, loaded, fmt.Sprintf(`states[0].ranks.length === 4 && states[0].ranks.every((r) => r.state === "running" && r.pid !== %d)`, pid))
	await(t, ctx, loaded, `(globalThis.mark ??= states[0].step) + 30 < states[0].step && states[0].ranks.every((r) => r.step > mark)`)
	await(t, ctx, loaded, `charts.get("loss").data[0].at(-1) > mark && charts.get("loss").data[0].every((x, i, all) => i === 0 || x > all[i - 1])`)
	await(t, ctx, loaded, `document.getElementById("events").textContent.includes("started in place of worker 1")`)
}

// A job that goes on without a killed worker stays one curve, and shows the workers that are left.
func TestShrunkRunIsOneCurve(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	_, url := start(t, []string{"--on-failure", "shrink"}, "-global-batch", "16")
	ctx := browser(t, url)
	await(t, ctx, loaded, `states[0]?.ranks?.[1]?.step > 20 && document.getElementById("facts").textContent.includes("workers4 of 4")`)
	var pid int
	if err := chromedp.Run(ctx, chromedp.Evaluate(`(globalThis.survivors = states[0].ranks.filter((r) => r.rank !== 1).map((r) => r.pid), states[0].ranks[1].pid)`, &pid)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, loaded, `states[0].world_size === 3 && document.getElementById("facts").textContent.includes("workers3 of 3")`)
	await(t, ctx, loaded, `document.querySelectorAll("#ranks tbody tr").length === 3 && states[0].ranks.every((r) => r.state === "running" && survivors.includes(r.pid))`)
	await(t, ctx, loaded, `(globalThis.mark ??= states[0].step) + 30 < states[0].step && states[0].ranks.every((r) => r.step > mark)`)
	await(t, ctx, loaded, `charts.get("loss").data[0].at(-1) > mark && charts.get("loss").data[0].every((x, i, all) => i === 0 || x > all[i - 1])`)
	await(t, ctx, loaded, `document.getElementById("events").textContent.includes("worker 1")`)
	shoot(t, ctx, "shrunk-1600", 1600, false)
}

// The page of the node that hosts the rendezvous shows the workers of all nodes.
func TestSeveralNodes(t *testing.T) {
	testkit.Long(t)
	_, endpoint := testkit.Port(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the nodes' common secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := command(t, "golaunch")
	node := func(flags ...string) *testkit.Process {
		cmd := exec.Command(path, slices.Concat(flags, []string{"--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
			"--rdzv-endpoint", endpoint, "--token-file", token, os.Args[0], "-slow", "3"})...)
		cmd.Env = testkit.Env("GODDP_TEST_PROGRAM=worker", "GODDP_DEVICE=cpu", "OMP_NUM_THREADS=1")
		return testkit.Start(t, cmd)
	}
	host := node("--page")
	host.Await("waiting: this node has joined", 1)
	node() // needs no flag for the page
	url := regexp.MustCompile(pageLine).FindStringSubmatch(host.Await(pageLine, 1).Text)[1]
	deadline := time.Now().Add(testkit.Soon)
	for {
		var states []page.State
		res, err := http.Get(strings.Replace(url, "/?", "/state?", 1))
		if err != nil {
			t.Fatal(err)
		}
		err = json.NewDecoder(res.Body).Decode(&states)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		s := states[0]
		if len(s.Ranks) == 4 && s.Slow != nil && s.Slow.Rank == 3 && s.Slow.Part == "data" && s.Ranks[3].Node == 1 && s.Ranks[3].State == page.Running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %+v", testkit.Soon, s)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Runs that golaunch has kept are shown in the same panels, after their jobs.
func TestKeptRunsAreCompared(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	dir := t.TempDir()
	for _, name := range []string{"fast", "slow"} {
		pause, steps := "0s", "60" // its curves end earlier
		if name == "slow" {
			pause, steps = "3ms", "80"
		}
		job, _ := start(t, []string{"--run-dir", filepath.Join(dir, name)}, "-steps", steps, "-pause", pause, "-slow", "1")
		if code := job.Wait(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
	}
	shown := exec.Command(command(t, "goddp"), "page", filepath.Join(dir, "fast"), filepath.Join(dir, "slow"))
	line := testkit.Start(t, shown).Await(`^page: (http://\S+)$`, 1)
	ctx := browser(t, strings.TrimPrefix(line.Text, "page: "))
	await(t, ctx, loaded, `charts.get("loss")?.data?.length === 7 && charts.get("loss").data[0].at(-1) === 80 && charts.get("loss").latest.textContent.split(" · ").length === 2`)
	await(t, ctx, loaded, `/^[^–]+ · [^–]+$/.test(charts.get("time of a step")?.latest.textContent) && !/NaN|–/.test(charts.get("time of a step").plot.getAttribute("aria-label"))`)
	await(t, ctx, loaded, `document.getElementById("status").textContent === "succeeded" && document.getElementById("runs").children.length === 2`)
	shoot(t, ctx, "compare-1600", 1600, false)
}

// The page of 64 ranks with 100,000 steps loads in 2 s. A spike of one step is visible in the whole curve, in the heat map, and when
// zoomed in. What golaunch and the browser hold for it is bounded.
func TestLargeRun(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	const ranks, steps = 64, 100_000
	r := page.NewRun(page.Info{Name: "large", Started: time.Now()})
	r.Round(ranks, 0)
	now, begin := time.Unix(1000, 0), time.Now()
	for rank := range ranks {
		r.Worker(page.Worker{Rank: rank, State: page.Running})
		reporter := telemetry.NewReporter(func(b []byte) error { return r.Report(rank, b) }, func() time.Time { return now })
		for step := 1; step <= steps; step++ {
			now = now.Add(20 * time.Millisecond) // so that each step has its own record
			data := 0.001
			if rank == 17 && step == 54_321 {
				data = 0.5
			}
			reporter.Step(step, []telemetry.Value{{Name: telemetry.Data, Number: data}, {Name: telemetry.Forward, Number: 0.004}, {Name: telemetry.Backward, Number: 0.008},
				{Name: telemetry.Wait, Number: 0.002}, {Name: telemetry.Optimizer, Number: 0.001}, {Name: telemetry.Other, Number: 0.001}})
			if step%10 == 0 {
				loss := 1 + 1/float64(step)
				if step == 54_320 {
					loss = 9
				}
				reporter.Report(step, telemetry.Value{Name: "loss", Number: loss})
			}
		}
		reporter.Flush()
	}
	took := time.Since(begin)
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("%v for a record; %d MiB", took/(ranks*steps), memory.HeapAlloc>>20)
	if most := uint64(128 << 20); memory.HeapAlloc > most {
		t.Errorf("the run holds %d bytes, want at most %d", memory.HeapAlloc, most)
	}
	s, err := page.Serve("", "", r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := browser(t, "about:blank")
	took = time.Hour
	for n := 0; n < 3 && took > 2*time.Second; n++ { // other work on the machine delays a load
		begin = time.Now()
		if err := chromedp.Run(ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(s.URL())); err != nil {
			t.Fatal(err)
		}
		await(t, ctx, loaded, fmt.Sprintf(`charts.get("loss")?.u && heat?.ranks?.length === %d`, ranks))
		took = min(took, time.Since(begin))
	}
	if t.Logf("loaded in %v", took); took > 2*time.Second {
		t.Errorf("the fastest of three loads took %v, want 2 s", took)
	}
	await(t, ctx, loaded, `Math.max(...charts.get("loss").data[2]) === 9`)
	await(t, ctx, loaded, `Math.max(...heat.ranks[17].max) > 0.5 && Math.max(...heat.ranks[16].max) < 0.02`)
	for _, zoom := range []string{"[50000, 60000]", "[54200, 54400]"} {
		await(t, ctx, loaded, `(setZoom(`+zoom+`), true)`)
		await(t, ctx, loaded, `charts.get("loss").data[0][0] >= zoom[0] - 1000 && Math.max(...charts.get("loss").data[2]) === 9 && Math.max(...heat.ranks[17].max) > 0.5`)
	}
	await(t, ctx, loaded, `performance.memory.usedJSHeapSize < 100e6`)
	shoot(t, ctx, "large-zoomed", 1600, false)
	await(t, ctx, loaded, `(setZoom(null), true)`)
	shoot(t, ctx, "large-1600", 1600, true)
	shoot(t, ctx, "large-360", 360, false)
}
