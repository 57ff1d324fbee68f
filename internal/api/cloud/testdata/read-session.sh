curl -sS "$WAMP_API/v1/sessions/$SESSION_ID" \
  -H "Authorization: Bearer $WAMP_TOKEN" \
  | jq '{
      workspace: .session.workspace,
      canContinue: .session.continuation.canContinue,
      carriesPreviousWork: (.session.continuation.reason == null),
      reason: .session.continuation.reason,
      state: .session.continuation.state,
      conversation: .session.continuation.conversation.fidelity,
      files: .session.continuation.workspace.fidelity,
      busy: (.session.activeRun != null)
    }'
