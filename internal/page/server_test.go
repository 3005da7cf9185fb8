package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, map[string]func(){"reader": read}) }

// urlVar holds the URL that the program reader gets.
const urlVar = "GODDP_TEST_URL"

// read is a program that gets the page, and prints the status or the error.
func read() {
	res, err := http.Get(os.Getenv(urlVar))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Status)
}

// Another user of the host gets no answer, even with the token.
func TestOtherUsersAreRefused(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Linux)
	s, _ := serve(t, NewRun(Info{}))
	// The client may see the end of the connection before or after it has sent its request.
	for isOther, want := range map[bool]string{false: "^200 OK\n$", true: "EOF|reset by peer|server closed idle connection"} {
		cmd := testkit.Self(t, "reader")
		cmd.Env = append(cmd.Env, urlVar+"="+s.URL())
		if isOther {
			cmd = testkit.AsUser(t, cmd)
		}
		if out, err := cmd.Output(); err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("another user %v: %q, %v, want %q", isOther, out, err, want)
		}
	}
}

// serve serves a run, and returns the URL of a path.
func serve(t *testing.T, r *Run) (s *Server, at func(path string) string) {
	t.Helper()
	s, err := Serve("", "", r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, func(path string) string { return strings.Replace(s.URL(), "/?", path+"?", 1) }
}

// fetch makes a request, and returns the status and the body.
func fetch(t *testing.T, address string, change func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// Whoever lacks the token gets nothing, nor does the page of another site, whatever name it gives this host.
func TestStrangersGetNothing(t *testing.T) {
	s, at := serve(t, NewRun(Info{Name: "secret"}))
	_, port, _ := net.SplitHostPort(s.ln.Addr().String())
	for _, path := range []string{"/", "/state", "/events", "/curves", "/lines", "/metrics", "/other"} {
		for name, change := range map[string]func(*http.Request){
			"without a token": func(r *http.Request) { r.URL.RawQuery = "" },
			"a wrong token":   func(r *http.Request) { r.URL.RawQuery = "token=x" },
			"a foreign name":  func(r *http.Request) { r.Host = "evil.example:" + port },
			"a foreign page":  func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
			"another port":    func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		} {
			if status, body := fetch(t, at(path), change); status != http.StatusForbidden || strings.Contains(body, "secret") {
				t.Errorf("%s, %s: %d %q, want 403", path, name, status, body)
			}
		}
	}
	for name, change := range map[string]func(*http.Request){
		"the token":               nil,
		"the token in the header": func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+s.token); r.URL.RawQuery = "" },
		"a tunnel":                func(r *http.Request) { r.Host = "LocalHost:8080" },
		"port 80":                 func(r *http.Request) { r.Host = "[::1]" },
		"a forwarded address":     func(r *http.Request) { r.Host = "192.0.2.1:9400" },
		"the host's name":         func(r *http.Request) { r.Host = hostname() + ":9400" },
		"a scraper by any name": func(r *http.Request) {
			r.Host = "job.example"
			r.Header.Set("Authorization", "Bearer "+s.token)
			r.URL.RawQuery = ""
		},
		"its own page": func(r *http.Request) { r.Header.Set("Origin", "http://"+r.URL.Host) },
	} {
		if status, body := fetch(t, at("/state"), change); status != http.StatusOK || !strings.Contains(body, "secret") {
			t.Errorf("%s: %d %q", name, status, body)
		}
	}
}

// Who reaches the page by an unknown name is told which name that is.
func TestUnknownName(t *testing.T) {
	_, at := serve(t, NewRun(Info{}))
	_, body := fetch(t, at("/"), func(r *http.Request) { r.Host = "node1.example:9400" })
	if want := `"node1.example:9400" is no name of this page`; !strings.Contains(body, want) {
		t.Errorf("got %q, want %q", body, want)
	}
}

// The URL of a page on all interfaces has a name by which other hosts can reach this one.
func TestURLOfAllInterfaces(t *testing.T) {
	s, err := Serve("0.0.0.0", "", NewRun(Info{}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if want := "http://" + hostname() + ":"; !strings.HasPrefix(s.URL(), want) {
		t.Errorf("%s, want %s...", s.URL(), want)
	}
}

// The document has its scripts and styles in it, so that no request leaves the host.
func TestDocumentIsWhole(t *testing.T) {
	_, at := serve(t, NewRun(Info{}))
	_, body := fetch(t, at("/"), nil)
	if strings.Contains(body, "{{") || strings.Contains(body, "src=") || strings.Contains(body, "href=\"http") || len(body) < 50_000 {
		t.Errorf("a document of %d bytes with references", len(body))
	}
}

// The states come as events, when they have changed, and once more when golaunch ends.
func TestEvents(t *testing.T) {
	r := NewRun(Info{Name: "<job>"})
	s, at := serve(t, r)
	res, err := http.Get(at("/events"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewScanner(res.Body)
	next := func() string {
		for in.Scan() {
			if data, ok := strings.CutPrefix(in.Text(), "data: "); ok {
				return data
			}
		}
		t.Fatal("no event", in.Err())
		return ""
	}
	if e := next(); !strings.Contains(e, `"status":"running"`) || strings.Contains(e, "<job>") {
		t.Error(e)
	}
	r.End("failed", "rank 1 is the culprit", []int{1})
	if e := next(); !strings.Contains(e, `"failure":"rank 1 is the culprit","culprits":[1]`) {
		t.Error(e)
	}
	close(s.done)
	if e := next(); !strings.Contains(e, `"status":"failed"`) {
		t.Error(e)
	}
	s.done = make(chan struct{}) // Close closes it
}

// slowReader is a reader's connection on which so much time passes after each event that its write deadline has passed.
type slowReader struct {
	*httptest.ResponseRecorder
	events  chan string
	isStale bool
}

func (r *slowReader) SetWriteDeadline(time.Time) error { r.isStale = false; return nil }

func (r *slowReader) Write(b []byte) (int, error) {
	if r.isStale {
		return 0, os.ErrDeadlineExceeded
	}
	return r.ResponseRecorder.Write(b)
}

func (r *slowReader) FlushError() error {
	r.events <- r.Body.String()
	r.Body.Reset()
	r.isStale = true
	return nil
}

// The last states reach a reader also if nothing has happened for long before.
func TestLastEventAfterSilence(t *testing.T) {
	r := NewRun(Info{})
	s := &Server{runs: []*Run{r}, done: make(chan struct{})}
	w := &slowReader{ResponseRecorder: httptest.NewRecorder(), events: make(chan string, 3)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.events(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events", nil))
	}()
	<-w.events
	r.End("failed", "", nil)
	close(s.done)
	if e := <-w.events; !strings.Contains(e, `"status":"failed"`) {
		t.Errorf("the last event is %q", e)
	}
	cancel()
	<-ended
}

// Connections that say nothing cost a bounded number of descriptors and goroutines, and keep no reader out for long.
func TestIdleConnections(t *testing.T) {
	s, at := serve(t, NewRun(Info{}))
	before := runtime.NumGoroutine()
	u, _ := url.Parse(s.URL())
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for range 1000 {
		c, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	last := idle[len(idle)-1]
	last.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := last.Read(make([]byte, 1)); err == nil {
		t.Error("the last connection was answered")
	}
	if n := len(s.ln.(*listener).slots); n > MaxConns {
		t.Errorf("%d connections, want at most %d", n, MaxConns)
	}
	if n := runtime.NumGoroutine() - before; n > MaxConns {
		t.Errorf("%d goroutines more, want at most %d", n, MaxConns)
	}
	for _, c := range idle[:100] {
		c.Close()
	}
	deadline := time.Now().Add(time.Minute)
	for {
		res, err := http.Get(at("/state"))
		if err == nil {
			res.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestMetrics(t *testing.T) {
	r := NewRun(Info{ID: "a\"b\\c\nd", Started: time.Unix(5, 0)})
	r.now = func() time.Time { return time.Unix(100, 0) }
	r.Round(3, 0)
	r.Worker(Worker{Rank: 2, State: Running})
	add(r, 2, &telemetry.Record{Kind: telemetry.Values, Step: 7, Values: []telemetry.Value{{Name: "loss", Number: 2}}})
	r.ranks[2].at = time.Unix(98, 0)
	r.Round(2, 1) // without rank 2
	r.Worker(Worker{Rank: 0, State: Running})
	add(r, 0, &telemetry.Record{Kind: telemetry.Values, Step: 7, Values: []telemetry.Value{{Name: "loss", Number: 0.5}, {Name: "<b>", Number: nan64}}})
	add(r, 0, &telemetry.Record{Kind: telemetry.Times, Step: 7, Steps: 2, Values: []telemetry.Value{{Name: "data", Number: 1}}})
	r.ranks[0].at = time.Unix(99, 0)
	_, at := serve(t, r)
	_, body := fetch(t, at("/metrics"), func(r *http.Request) {
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
	})
	run := `run="a\"b\\c\nd"`
	want := fmt.Sprintf(`# TYPE goddp_up gauge
# HELP goddp_up Whether the job runs.
goddp_up{%[1]s} 1
# TYPE goddp_world_size gauge
# HELP goddp_world_size Number of ranks of the current round.
goddp_world_size{%[1]s} 2
# TYPE goddp_restarts counter
# HELP goddp_restarts Number of restarts.
goddp_restarts_total{%[1]s} 1
# TYPE goddp_start_time_seconds gauge
# UNIT goddp_start_time_seconds seconds
# HELP goddp_start_time_seconds When the job began, in seconds since 1970.
goddp_start_time_seconds{%[1]s} 5
# TYPE goddp_worker_up gauge
# HELP goddp_worker_up Whether the worker runs.
goddp_worker_up{%[1]s,rank="0"} 1
# TYPE goddp_step gauge
# HELP goddp_step Number of completed steps.
goddp_step{%[1]s,rank="0"} 7
# TYPE goddp_report_age_seconds gauge
# UNIT goddp_report_age_seconds seconds
# HELP goddp_report_age_seconds Time since the worker's last report.
goddp_report_age_seconds{%[1]s,rank="0"} 1
# TYPE goddp_reports_dropped counter
# HELP goddp_reports_dropped Number of records of values or times that the worker dropped, because golaunch had not taken the earlier ones.
goddp_reports_dropped_total{%[1]s,rank="0"} 0
# TYPE goddp_step_part_seconds gauge
# UNIT goddp_step_part_seconds seconds
# HELP goddp_step_part_seconds Mean time of a part of the last steps.
goddp_step_part_seconds{%[1]s,rank="0",part="data"} 0.5
# TYPE goddp_value gauge
# HELP goddp_value Latest value of a number that the program reports.
goddp_value{%[1]s,rank="0",name="<b>"} NaN
goddp_value{%[1]s,rank="0",name="loss"} 0.5
# EOF
`, run)
	if body != want {
		t.Errorf("got\n%swant\n%s", body, want)
	}
	_, body = fetch(t, at("/metrics"), nil)
	want = strings.NewReplacer("TYPE goddp_restarts ", "TYPE goddp_restarts_total ", "HELP goddp_restarts ", "HELP goddp_restarts_total ", "TYPE goddp_reports_dropped ",
		"TYPE goddp_reports_dropped_total ", "HELP goddp_reports_dropped ", "HELP goddp_reports_dropped_total ", "# EOF\n", "").Replace(want)
	if want = regexp.MustCompile(`(?m)^# UNIT .*\n`).ReplaceAllString(want, ""); body != want {
		t.Errorf("as plain text: got\n%swant\n%s", body, want)
	}
}

// The dashboard of the examples asks for metrics that exist.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../examples/grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) {
		t.Error("invalid JSON")
	}
	r := NewRun(Info{})
	r.Worker(Worker{State: Running})
	add(r, 0, &telemetry.Record{Kind: telemetry.Values, Values: []telemetry.Value{{Name: telemetry.CheckpointSeconds}}})
	add(r, 0, &telemetry.Record{Kind: telemetry.Times, Values: []telemetry.Value{{Name: telemetry.Data}}})
	r.ranks[0].at = time.Unix(1, 0)
	o := &openMetrics{families: map[string]*strings.Builder{}}
	r.metrics(o)
	var metrics strings.Builder
	o.write(&metrics)
	asked := regexp.MustCompile(`goddp_\w+`).FindAllString(string(text), -1)
	for _, name := range asked {
		if !strings.Contains(metrics.String(), name+"{") {
			t.Errorf("there is no metric %s", name)
		}
	}
	if len(asked) < 8 {
		t.Errorf("it asks for %d metrics", len(asked))
	}
}

var nan64 = float64(nan)
