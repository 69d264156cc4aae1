{{- /* Of every pod: where it may run, and by which right its image is pulled. Of the values, or those of a pool. */ -}}
{{- define "hoss.pod" -}}
{{- with .imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The environment that services of HOSS have in common. */ -}}
{{- define "hoss.environment" -}}
{{- with .otel.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
- {name: OTEL_METRIC_EXPORT_INTERVAL, value: {{ $.otel.metricIntervalMilliseconds | int | quote }}}
{{- end }}
{{- with .extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* dispatcher.yaml, which dispatchers read when they start. */ -}}
{{- define "hoss.dispatcher" -}}
apiVersion: hoss.dev/v1alpha1
kind: DispatcherConfig
kubernetes:
  # So that `kubectl get leases` says which is active. One that was killed is replaced when this has passed.
  lease: {{ .Release.Namespace }}/hoss-dispatcher
  {{- toYaml .Values.dispatcher.kubernetes | nindent 2 }}
{{- end }}

{{- /* authentication.yaml, which dispatchers and resolvers read when they start. */ -}}
{{- define "hoss.authentication" -}}
apiVersion: hoss.dev/v1alpha1
kind: AuthenticationConfig
{{ toYaml .Values.authentication }}
{{- end }}

{{- /* All pools: the default one, which is `worker` and has no name, and `pools`. */ -}}
{{- define "hoss.pools" -}}
{{- $pools := .pools }}
{{- if .worker.enabled }}{{ $pools = prepend $pools .worker }}{{ end }}
{{- toYaml $pools }}
{{- end }}

{{- /* Of a pool's pods. No other pool's are selected by them, the default one's neither. */ -}}
{{- define "hoss.pool.labels" -}}
{{- if .name -}}
{app.kubernetes.io/name: hoss, app.kubernetes.io/component: pool-worker, hoss.dev/pool: {{ .name | quote }}}
{{- else -}}
{app.kubernetes.io/name: hoss, app.kubernetes.io/component: worker}
{{- end }}
{{- end }}

{{- /* A document within a value, as it stands. A list of its name and its text. */}}
{{- define "hoss.document" -}}
{{- with get (fromYaml (index . 1)) "Error" }}{{ fail (printf "%s: is no YAML mapping: %s" (index $ 0) .) }}{{ end }}
{{- index . 1 }}
{{- end }}
