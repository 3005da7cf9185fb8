package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
)

//go:embed assets/index.html
var indexHTML string

//go:embed assets/page.css
var pageCSS string

//go:embed assets/page.js
var pageJS string

// uPlot, with its licence in assets/uplot-LICENSE, draws the curves.
//
//go:embed assets/uplot-1.6.32.iife.min.js
var uplotJS string

//go:embed assets/uplot-1.6.32.min.css
var uplotCSS string

// The bounds on what readers cost the job.
const (
	MaxConns     = 64 // connections at a time; more are closed
	headerTime   = 5 * time.Second
	writeTime    = 10 * time.Second
	idleTime     = 30 * time.Second
	maxHeader    = 16 << 10
	maxBins      = 2000
	eventsEvery  = 500 * time.Millisecond // between two events of a stream
	aliveEvery   = 15 * time.Second       // between two events of a run that does not change
	readersTime  = 2 * time.Second        // for readers to get the last points, when the job has ended
	shutdownTime = time.Second
)

// A Server shows runs in a browser.
type Server struct {
	runs  []*Run
	token string
	names []string // the names that the header Host may have beside IP addresses; nil: any
	ln    net.Listener
	http  *http.Server
	done  chan struct{} // closed by Close
	wg    sync.WaitGroup

	mu       sync.Mutex
	isClosed bool
	readers  sync.WaitGroup // the streams of events
	index    []byte
	csp      string
}

// Serve shows runs at an address, host:port or a host or a port. An empty host is the loopback interface. An empty token
// stands for a random one. The address of the page, with its token, is URL.
func Serve(addr, token string, runs ...*Run) (*Server, error) {
	host, port, err := SplitAddr(addr)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	s := &Server{runs: runs, token: cmp.Or(token, rand.Text()), done: make(chan struct{})}
	if !ln.Addr().(*net.TCPAddr).IP.IsUnspecified() { // else a reader may reach the host by any name
		s.names = []string{"localhost", host, hostname()}
	}
	s.ln = newListener(ln)
	s.compose()
	s.http = &http.Server{
		Handler: s.checked(), ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader, ReadTimeout: writeTime,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.wg.Go(func() { _ = s.http.Serve(s.ln) }) // it ends with Close
	return s, nil
}

// SplitAddr splits "", "8080", "host", "host:8080" and ":8080".
func SplitAddr(addr string) (host, port string, err error) {
	host, port = "127.0.0.1", "0"
	_, notNumber := strconv.Atoi(addr)
	ip, notIP := netip.ParseAddr(strings.Trim(addr, "[]"))
	switch {
	case addr == "":
	case notNumber == nil:
		port = addr
	case notIP == nil:
		host = ip.String()
	case !strings.Contains(addr, ":"):
		host = addr
	default:
		var h string
		if h, port, err = net.SplitHostPort(addr); err != nil {
			return "", "", fmt.Errorf("%q: want HOST, PORT or HOST:PORT", addr)
		}
		host = cmp.Or(h, host)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("port %s: want 0 to %d", port, math.MaxUint16)
	}
	return host, port, nil
}

// URL returns the address of the page, with the token. Whoever knows it can read the page.
func (s *Server) URL() string {
	at := s.ln.Addr().(*net.TCPAddr)
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = hostname()
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(at.Port)) + "/?token=" + url.QueryEscape(s.token)
}

// hostname returns the name of this host, or localhost if it has none.
func hostname() string {
	name, _ := os.Hostname()
	return cmp.Or(name, "localhost")
}

// Close sends the last states to the readers, lets them get the points that they still lack, and ends all connections.
func (s *Server) Close() error {
	s.mu.Lock()
	s.isClosed = true
	s.mu.Unlock()
	close(s.done)
	s.readers.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	s.wg.Wait()
	return err
}

// compose puts the page together: one document, whose scripts and styles the Content-Security-Policy names by their
// hashes. The browser loads nothing else but the data.
func (s *Server) compose() {
	s.index = []byte(strings.NewReplacer("{{uplot.css}}", uplotCSS, "{{page.css}}", pageCSS, "{{uplot.js}}", uplotJS, "{{page.js}}", pageJS).Replace(indexHTML))
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	s.csp = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
		"; script-src " + hash(uplotJS) + " " + hash(pageJS) + "; style-src " + hash(uplotCSS) + " " + hash(pageCSS)
}

// checked returns the handler of all requests. It refuses those of other pages and of readers without the token.
func (s *Server) checked() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", s.csp)
		_, _ = w.Write(s.index)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.states()) })
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /curves", s.curves)
	mux.HandleFunc("GET /lines", s.lines)
	mux.HandleFunc("GET /metrics", s.metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		inAddress, inHeader := s.hasToken(r)
		switch {
		case !inHeader && !s.isHost(r.Host): // a browser sends the header for no other page
			http.Error(w, fmt.Sprintf("goddp: %q is no name of this page; want an IP address, localhost or the host's name", r.Host), http.StatusForbidden)
		case !isOwnOrigin(r):
			http.Error(w, "goddp: this page answers no requests of other pages", http.StatusForbidden)
		case !inAddress && !inHeader:
			http.Error(w, "goddp: want the token of the address that golaunch printed", http.StatusForbidden)
		default:
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
			mux.ServeHTTP(w, r)
		}
	})
}

// isHost reports whether a request's Host names this server. The name of a stranger's domain, which may resolve to this
// host, does not. An IP address resolves to nothing else.
func (s *Server) isHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil { // port 80
		name = strings.Trim(host, "[]")
	}
	_, err = netip.ParseAddr(name)
	return s.names == nil || err == nil || slices.ContainsFunc(s.names, func(own string) bool { return strings.EqualFold(own, name) })
}

// isOwnOrigin reports whether no other page made the request.
func isOwnOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" && r.URL.Path != "/" { // a link to the page is fine
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// hasToken reports whether a request has the token, in its address or, as Prometheus sends it, in its header.
func (s *Server) hasToken(r *http.Request) (inAddress, inHeader bool) {
	isToken := func(given string) bool { return subtle.ConstantTimeCompare([]byte(given), []byte(s.token)) == 1 }
	bearer, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return isToken(r.URL.Query().Get("token")), isBearer && isToken(bearer)
}

func (s *Server) states() []*State {
	var all []*State
	for _, r := range s.runs {
		all = append(all, r.State())
	}
	return all
}

// events sends the states when they have changed, as Server-Sent Events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.isClosed {
		s.mu.Unlock()
		return
	}
	s.readers.Add(1)
	s.mu.Unlock()
	defer s.readers.Done()
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func() error {
		_ = out.SetWriteDeadline(time.Now().Add(writeTime))
		fmt.Fprint(w, "data: ")
		writeJSON(w, s.states())
		fmt.Fprint(w, "\n\n")
		return out.Flush()
	}
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	var shown []byte
	for sent := time.Now(); ; {
		var versions bytes.Buffer
		for _, run := range s.runs {
			fmt.Fprint(&versions, run.Version(), " ")
		}
		if isNew := !bytes.Equal(versions.Bytes(), shown); isNew || time.Since(sent) > aliveEvery {
			shown, sent = versions.Bytes(), time.Now()
			if send() != nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-s.done: // the reader gets the last states, and ends the stream when it has all curves
			if send() != nil {
				return
			}
			select {
			case <-r.Context().Done():
			case <-time.After(readersTime):
			}
			return
		}
	}
}

// run returns the run that a request asks for, by its index, or nil.
func (s *Server) run(r *http.Request) *Run {
	if i, err := strconv.Atoi(r.URL.Query().Get("run")); err == nil && i >= 0 && i < len(s.runs) {
		return s.runs[i]
	}
	return nil
}

func (s *Server) curves(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	from, to := whole(q.Get("from"), 0), whole(q.Get("to"), -1)
	bins := int(max(1, min(whole(q.Get("bins"), 600), maxBins)))
	kind := telemetry.Values
	if q.Get("kind") == "times" {
		kind = telemetry.Times
	}
	run := s.run(r)
	if run == nil {
		http.NotFound(w, r)
		return
	}
	writeJSON(w, run.Curves(kind, q.Get("name"), from, to, bins, q.Has("each")))
}

// whole parses a whole number, or returns a default.
func whole(text string, otherwise int64) int64 {
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return v
	}
	return otherwise
}

func (s *Server) lines(w http.ResponseWriter, r *http.Request) {
	run := s.run(r)
	if run == nil {
		http.NotFound(w, r)
		return
	}
	writeJSON(w, run.Lines(int(whole(r.URL.Query().Get("rank"), -1))))
}

// writeJSON writes a value. JSON has no raw line ends, so it is also the data of an event.
func writeJSON(w io.Writer, v any) {
	if rw, ok := w.(http.ResponseWriter); ok && rw.Header().Get("Content-Type") == "" {
		rw.Header().Set("Content-Type", "application/json")
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // all values can be marshalled
	}
	_, _ = w.Write(text) // the reader may be gone
}
