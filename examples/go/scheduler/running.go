package scheduler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // of several dispatchers, the one that serves
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"hoss.dev/examples/hossv1"
)

const (
	mostMessageBytes = 64 << 20
	finishTime       = 2 * time.Second // a stopping scheduler waits this long for the ledger's answers
	closeTime        = time.Second
	protocol         = 1 // that this package speaks, see Register in proto/hoss/v1/workerlink.proto
)

type options struct {
	name        string
	labels      labels
	dispatchers string
	resolvers   string
	tlsDir      string
	readyFile   string
	window      uint
	budget      time.Duration
	limit       time.Duration
}

type labels map[string]string

func (l labels) String() string { return fmt.Sprint(map[string]string(l)) }

func (l labels) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found {
		return errors.New("is not of the form key=value")
	}
	l[key] = value
	return nil
}

// Main runs a scheduler until the process is asked to stop, as its command line says.
func Main(algorithm Algorithm) {
	given := options{labels: labels{}}
	flag.StringVar(&given.name, "name", "", "unique among living workers")
	flag.Var(given.labels, "label", "`key=value` that policies match on; repeatable")
	flag.StringVar(&given.dispatchers, "dispatcher", "127.0.0.1:7100", "`addresses`, with commas; one is active")
	flag.StringVar(&given.resolvers, "resolver", "127.0.0.1:7101", "`host:port`s, with commas; any answers")
	flag.StringVar(&given.tlsDir, "tls-dir", "", "`directory` of ca.crt, tls.crt and tls.key for mutual TLS")
	flag.StringVar(&given.readyFile, "ready-file", "", "`file` written once the scheduler runs")
	flag.UintVar(&given.window, "window", 2000, "pods taken at once")
	flag.DurationVar(&given.budget, "budget", 100*time.Millisecond, "what Place is told")
	flag.DurationVar(&given.limit, "limit", 10*time.Second, "Place must answer within")
	flag.Parse()
	if given.name == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, algorithm, given); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", given.name, err)
		os.Exit(1)
	}
}

// run schedules until the context ends, and gives the pods back then. An error: the dispatcher refused the
// registration, or the algorithm did not answer in time.
func run(ctx context.Context, algorithm Algorithm, given options) error {
	s := newScheduler(algorithm, given)
	toDispatcher, err := channel(given.dispatchers, "dispatcher", given.tlsDir)
	if err != nil {
		return err
	}
	defer toDispatcher.Close()
	toResolver, err := channel(given.resolvers, "resolver", given.tlsDir)
	if err != nil {
		return err
	}
	defer toResolver.Close()
	register := &hossv1.Register{Protocol: protocol, Name: given.name, Incarnation: rand.Uint64() >> 1, Window: uint32(given.window)}
	for _, key := range sortedKeys(given.labels) {
		register.Labels = append(register.Labels, &hossv1.Label{Key: key, Value: given.labels[key]})
	}
	ledger := hossv1.NewResolverClient(toResolver)
	running, end := context.WithCancelCause(context.Background())
	defer end(nil)
	go func() { end(s.followLink(running, hossv1.NewWorkerLinkClient(toDispatcher), register)) }()
	go func() { end(s.followFeed(running, ledger)) }()
	go func() { end(s.followVerdicts(running, ledger)) }()
	go func() { end(s.loop(running.Done())) }()
	if given.readyFile != "" {
		if err := os.WriteFile(given.readyFile, []byte("ready\n"), 0o600); err != nil {
			return err
		}
	}
	select {
	case <-running.Done():
	case <-ctx.Done():
		s.finish(running)
	}
	if cause := context.Cause(running); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// finish gives back what is not at the ledger, and waits for its answers to the rest.
func (s *scheduler) finish(ctx context.Context) {
	s.do(ctx, func() {
		s.leaving = true
		s.send(&hossv1.WorkerMessage{Kind: &hossv1.WorkerMessage_Leave{Leave: &hossv1.Leave{}}})
		s.giveBack()
	})
	for deadline := time.Now().Add(finishTime); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		idle := true
		if s.do(ctx, func() { idle = s.idle() }); idle {
			break
		}
	}
	s.do(ctx, func() {
		if s.link != nil {
			s.link.close()
		}
	})
	for deadline := time.Now().Add(closeTime); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		ended := true
		if s.do(ctx, func() { ended = s.link == nil }); ended {
			return
		}
	}
}

// channel connects to one service of that kind at these addresses: mutual TLS with the files of a directory,
// or plain text without one. Of several dispatchers calls go to the one whose health check says that it serves.
func channel(addresses, kind, tlsDir string) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if tlsDir != "" {
		authority, err := os.ReadFile(filepath.Join(tlsDir, "ca.crt"))
		if err != nil {
			return nil, err
		}
		trusted := x509.NewCertPool()
		if !trusted.AppendCertsFromPEM(authority) {
			return nil, fmt.Errorf("%s: ca.crt has no certificate", tlsDir)
		}
		transport = credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13,
			RootCAs:    trusted,
			ServerName: kind + ".hoss.internal",
			// Read at every handshake, so that a renewed certificate needs no restart.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				certificate, key := filepath.Join(tlsDir, "tls.crt"), filepath.Join(tlsDir, "tls.key")
				pair, err := tls.LoadX509KeyPair(certificate, key)
				return &pair, err
			},
		})
	}
	list := manual.NewBuilderWithScheme("hoss")
	state, several := resolver.State{}, strings.Contains(addresses, ",")
	for address := range strings.SplitSeq(addresses, ",") {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	list.InitialState(state)
	config := `{"loadBalancingConfig": [{"round_robin": {}}]}`
	if several && kind == "dispatcher" {
		config = `{"loadBalancingConfig": [{"round_robin": {}}],
			"healthCheckConfig": {"serviceName": "hoss.v1.WorkerLink"}}`
	}
	return grpc.NewClient(
		"hoss:///"+kind,
		grpc.WithResolvers(list),
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(config),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(mostMessageBytes), grpc.MaxCallSendMsgSize(mostMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
	)
}
