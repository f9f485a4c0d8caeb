// A Kubernetes API server of custom resources, for tests: that of k8s.io/apiextensions-apiserver, on etcd and over TLS.
// Its users are those of a file, read at every request, so that a test can let a token expire. It has no core API, so it
// serves what the client reads of it from a folder: pods/NAME.json, pods/NAME.log and events/NAME.json.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
)

// User of a token, until Expires (seconds since 1970), who may not touch the resources Forbidden.
type User struct {
	Expires   float64
	Forbidden []string
}

func readUser(path, token string) (found User, known bool) {
	users := map[string]User{}
	text, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(text, &users) == nil {
		found, known = users[token]
	}
	return found, known
}

func main() {
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	r := o.RecommendedOptions
	r.Authentication, r.Authorization, r.CoreAPI, r.Admission = nil, nil, nil, nil // they ask a whole cluster
	r.Features.EnablePriorityAndFairness = false                                   // so does it
	flags := pflag.NewFlagSet("apiserver", pflag.ExitOnError)
	users := flags.String("users", "", `JSON file: {token: {"expires": seconds, "forbidden": [resource]}}`)
	core := flags.String("core", "", "folder of pods and events")
	r.Etcd.AddFlags(flags)
	r.SecureServing.AddFlags(flags)
	flags.Parse(os.Args[1:])
	if err := run(o, *users, *core); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(o *options.CustomResourceDefinitionsServerOptions, users, core string) error {
	r := o.RecommendedOptions
	if err := errors.Join(o.ServerRunOptions.ComponentGlobalsRegistry.Set(), o.Complete()); err != nil {
		return err
	}
	if err := r.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, nil); err != nil {
		return err
	}
	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	if err := o.ServerRunOptions.ApplyTo(&config.Config); err != nil {
		return err
	}
	if err := r.ApplyTo(config); err != nil {
		return err
	}
	resources := apiserver.DefaultAPIResourceConfigSource()
	if err := o.APIEnablement.ApplyTo(&config.Config, resources, apiserver.Scheme); err != nil {
		return err
	}
	config.Authentication.Authenticator = bearertoken.New(authenticator.TokenFunc(
		func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			found, ok := readUser(users, token)
			ok = ok && float64(time.Now().Unix()) < found.Expires
			return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, ok, nil
		}))
	config.Authorization.Authorizer = authorizer.AuthorizerFunc(
		func(_ context.Context, asked authorizer.Attributes) (authorizer.Decision, string, error) {
			found, _ := readUser(users, asked.GetUser().GetName())
			if slices.Contains(found.Forbidden, asked.GetResource()) {
				return authorizer.DecisionDeny, "", nil
			}
			return authorizer.DecisionAllow, "", nil
		})
	whole := &apiserver.Config{GenericConfig: config, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(
			*r.Etcd, config.ResourceTransformers, config.StorageObjectCountTracker),
		ServiceResolver: webhook.NewDefaultServiceResolver(),
	}}
	server, err := whole.Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	server.GenericAPIServer.Handler.NonGoRestfulMux.HandlePrefix("/api/v1/", http.HandlerFunc(
		func(answer http.ResponseWriter, request *http.Request) { serveCore(answer, request, core) }))
	return server.GenericAPIServer.PrepareRun().RunWithContext(genericapiserver.SetupSignalContext())
}

// serveCore answers /api/v1/namespaces/NAMESPACE/RESOURCE?labelSelector=... and .../pods/NAME/log.
func serveCore(answer http.ResponseWriter, request *http.Request, folder string) {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	if len(parts) == 7 && parts[4] == "pods" && parts[6] == "log" {
		http.ServeFile(answer, request, filepath.Join(folder, "pods", filepath.Base(parts[5])+".log"))
		return
	}
	selector, err := labels.Parse(request.URL.Query().Get("labelSelector"))
	if err != nil || len(parts) != 5 || (parts[4] != "pods" && parts[4] != "events") {
		http.Error(answer, "{}", http.StatusNotFound)
		return
	}
	found := []json.RawMessage{}
	files, _ := filepath.Glob(filepath.Join(folder, parts[4], "*.json"))
	for _, file := range files {
		object := struct {
			Metadata struct {
				Namespace string            `json:"namespace"`
				Labels    map[string]string `json:"labels"`
			} `json:"metadata"`
		}{}
		text, _ := os.ReadFile(file)
		if json.Unmarshal(text, &object) == nil && object.Metadata.Namespace == parts[3] &&
			selector.Matches(labels.Set(object.Metadata.Labels)) {
			found = append(found, text)
		}
	}
	answer.Header().Set("Content-Type", "application/json")
	json.NewEncoder(answer).Encode(map[string]any{"kind": "List", "apiVersion": "v1", "items": found})
}
