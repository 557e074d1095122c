package scafo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const (
	// largestTokenFile: tokens have tens of characters; more is another file.
	largestTokenFile = 4096
	// largestProblem is how much of a refusal is read for its text. Problem documents have a few hundred bytes.
	largestProblem = 64 << 10
	// mostIdle is how many connections to the node stay open: the poller's, and a few for parallel issuances.
	mostIdle = 8
	// nodeIdleTimeout is how long a node keeps a connection that is not used.
	nodeIdleTimeout = 30 * time.Second
	// idleTimeout closes connections before the node does: a write that is sent on one that the node closes in that moment
	// fails, as Go does not repeat it.
	idleTimeout = nodeIdleTimeout - 10*time.Second
	// dialTimeout is as long as a dead node may cost before it is reported; on one machine a connection takes no time.
	dialTimeout = 3 * time.Second
)

// node speaks HTTP to one node. It follows no redirects and uses no proxy, so that the token goes nowhere else.
type node struct {
	base      string
	token     string
	tokenFile string
	client    *http.Client
}

func newNode(s settings) *node {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: mostIdle,
		IdleConnTimeout:     idleTimeout,
	}
	return &node{
		base: s.node, token: s.token, tokenFile: s.tokenFile,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// send sends one request; target is the escaped path with its query. The context bounds it, its body included.
func (n *node) send(ctx context.Context, method, target string, header http.Header, body io.Reader) (*http.Response, error) {
	token, err := n.bearer()
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, n.base+target, body)
	if err != nil {
		return nil, fmt.Errorf("this is no request: %w", err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("Authorization", "Bearer "+token)
	return n.client.Do(request)
}

// errNoToken is a token file that is missing or holds none. It names the file, never what is in it.
var errNoToken = errors.New("no ingress token")

func (n *node) bearer() (string, error) {
	if n.token != "" {
		return n.token, nil
	}
	file, err := os.Open(n.tokenFile)
	if err != nil {
		return "", fmt.Errorf("%w: %w (a node writes it to <state-dir>/ingress-token)", errNoToken, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, largestTokenFile+1))
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoToken, err)
	}
	token := strings.TrimSpace(string(text))
	if len(text) > largestTokenFile || !isToken(token) {
		return "", fmt.Errorf("%w: %s is empty, or holds more than a token", errNoToken, n.tokenFile)
	}
	return token, nil
}

// isToken tells whether text is one or more printable ASCII characters without a space.
func isToken(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return text != ""
}

// refusal is an answer of the node that is not what was asked for.
type refusal struct {
	status        int
	title, detail string
}

func (r *refusal) Error() string {
	text := fmt.Sprintf("the node answered %d", r.status)
	if r.title != "" {
		text += ": " + r.title
	}
	if r.detail != "" {
		text += ": " + r.detail
	}
	return text
}

// refused reads the problem document (RFC 9457) of an answer, as far as it is one, and closes the answer.
func refused(response *http.Response) *refusal {
	defer response.Body.Close()
	r := &refusal{status: response.StatusCode}
	body, err := io.ReadAll(io.LimitReader(response.Body, largestProblem))
	var problem struct{ Title, Detail string }
	if err == nil && json.Unmarshal(body, &problem) == nil {
		r.title, r.detail = problem.Title, problem.Detail
	}
	return r
}

// drained reads the rest of a short answer, so that its connection can be used again, and closes it.
func drained(response *http.Response) {
	_, _ = io.CopyN(io.Discard, response.Body, largestProblem)
	response.Body.Close()
}
