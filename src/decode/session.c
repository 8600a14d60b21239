typedef int sl_placeholder_session;
