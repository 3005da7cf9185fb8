package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){"worker": work})
}

// pageLine matches the line with which golaunch prints the page's address.
const pageLine = `^golaunch: page: (http://\S+)$`

// golaunch builds golaunch, from the module that this one tests.
func golaunch(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "golaunch")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/golaunch")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return path
}

// start starts a job of 4 workers on the CPU, and returns it and the URL of its page.
func start(t *testing.T, flags []string, args ...string) (job *testkit.Process, url string) {
	t.Helper()
	all := append([]string{"--page", "--nproc-per-node", "4"}, flags...)
	cmd := exec.Command(golaunch(t), append(append(all, os.Args[0]), args...)...)
	cmd.Env = testkit.Env("GODDP_TEST_PROGRAM=worker", "GODDP_DEVICE=cpu", "OMP_NUM_THREADS=1")
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
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(100*time.Millisecond))); err != nil {
		var state string
		_ = chromedp.Run(context.WithoutCancel(ctx), chromedp.Evaluate(`document.body.innerText.slice(0, 2000)`, &state))
		t.Fatalf("after %v: not %s: %v\n%s", within, expression, err, state)
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
	await(t, ctx, loaded, `charts.get("loss").data[0].at(-1) > 100`)
	var alerts string
	if err := chromedp.Run(ctx, chromedp.Text("#alerts", &alerts, chromedp.ByQuery)); err != nil || strings.Contains(alerts, "rank 2") {
		t.Errorf("before rank 2 is slow: %q, %v", alerts, err)
	}
	if err := os.WriteFile(slow, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, 5*time.Second, `document.getElementById("alerts").textContent.startsWith("Rank 2 is the slowest: data takes ")`)
	shoot(t, ctx, "slow-1600", 1600, false)
	shoot(t, ctx, "slow-1600", 1600, true)
	shoot(t, ctx, "slow-360", 360, false)
	shoot(t, ctx, "slow-360", 360, true)
}
